// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "fuzz/scenarios.h"

namespace tokenspeed::fuzz {
namespace {

Config tiny(std::vector<CacheGroupConfig> groups, int num_pages) {
  Config config;
  config.groups = std::move(groups);
  config.num_pages = num_pages;
  config.max_seqs = 2;
  config.max_model_len = 12;
  config.max_step_tokens = 4;
  config.kv_events = true;  // so that the fingerprint knows what is cached
  config.max_wait_steps = 2;
  return config;
}

Question question(std::vector<TokenId> prompt, int max_new_tokens) {
  Question made;
  made.prompt = std::move(prompt);
  made.max_new_tokens = max_new_tokens;
  return made;
}

// Two that share a prefix, and one that needs what both hold.
std::vector<Question> three() {
  return {question({0, 1, 2, 0, 1}, 4), question({0, 1, 2, 0, 2}, 4), question({2, 2, 1}, 6)};
}
std::vector<Question> two() { return {three()[0], three()[1]}; }

Scenario scenario(const char* name, Config config, std::vector<Question> questions) {
  Scenario made;
  made.name = name;
  made.config = std::move(config);
  made.questions = std::move(questions);
  return made;
}

}  // namespace

std::vector<Scenario> scenarios() {
  const CacheGroupConfig full{"full", 2, 0};
  std::vector<Scenario> all;
  all.push_back(scenario("full", tiny({full}, 5), three()));
  all.push_back(scenario("no prefix cache", tiny({full}, 5), three()));
  all.back().config.prefix_cache = false;
  all.push_back(scenario("two steps ahead", tiny({full}, 5), three()));
  all.back().depth = 2;
  all.push_back(scenario("aborts", tiny({full}, 5), three()));
  all.back().aborts = true;
  all.push_back(scenario("failing rows", tiny({full}, 5), three()));
  all.back().failing_rows = true;
  all.push_back(scenario("deadlines", tiny({full}, 5), three()));
  all.back().time_passes = true;
  all.back().questions[1].deadline_ms = 1;
  all.push_back(scenario("priorities", tiny({full}, 4), three()));
  all.back().questions[2].priority = 2;
  all.back().config.max_bypass = 1;
  all.push_back(scenario("resets", tiny({full}, 4), two()));
  all.back().resets = true;
  all.push_back(scenario("partial pages", tiny({{"full", 4, 0}}, 4), three()));
  all.push_back(scenario("sliding", tiny({{"sliding", 2, 3}}, 4), three()));
  all.push_back(scenario("full and sliding", tiny({full, {"sliding", 2, 2}}, 9), two()));
  all.push_back(scenario("state", tiny({{"state", 2, 0}}, 4), three()));
  all.push_back(scenario("full and state", tiny({full, {"state", 2, 0}}, 8), two()));
  all.push_back(scenario("drafts", tiny({full}, 6), two()));
  all.back().config.max_row_tokens = 3;
  all.back().rejected_drafts = true;
  for (Question& asked : all.back().questions) {
    asked.draft_tokens = 2;
  }
  all.push_back(scenario("given drafts", tiny({full}, 6), two()));
  all.back().config.max_row_tokens = 3;
  all.back().given_drafts = true;
  all.push_back(scenario("host tier", tiny({full}, 4), two()));
  all.back().config.host_pages = 4;
  all.push_back(scenario("host tier, failing", tiny({full}, 4), two()));
  all.back().config.host_pages = 3;
  all.back().failing_acks = true;
  return all;
}

}  // namespace tokenspeed::fuzz
