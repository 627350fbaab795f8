// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <sstream>

#include "fuzz/random_run.h"

namespace tokenspeed::fuzz {
namespace {

CacheGroupConfig full(Random& random) { return {"full", random.pick({1, 2, 4}), 0}; }
CacheGroupConfig sliding(Random& random) {
  return {"sliding", random.pick({1, 2, 4}), random.between(1, 9)};
}
CacheGroupConfig state(Random& random) { return {"state", random.pick({2, 4}), 0}; }

std::vector<CacheGroupConfig> random_groups(Random& random) {
  switch (random.below(10)) {
    case 0:
      return {sliding(random)};
    case 1:
      return {state(random)};
    case 2:
      return {full(random), full(random)};
    case 3:
      return {full(random), sliding(random)};
    case 4:
      return {full(random), state(random)};
    case 5:
      return {sliding(random), state(random)};
    case 6:
      return {state(random), sliding(random), full(random)};
    case 7:
      return {sliding(random), full(random), sliding(random)};
    default:
      return {full(random)};
  }
}

}  // namespace

Config random_config(Random& random) {
  Config config;
  config.groups = random_groups(random);
  const int groups = static_cast<int>(config.groups.size());
  config.num_pages = groups * random.between(3, random.pick({4, 6, 14}));
  config.max_seqs = random.between(1, 4);
  config.max_model_len = random.between(16, 40);
  const bool has_state = Layout(config.groups).has_state();  // which cannot be rolled back
  config.max_row_tokens = !has_state && random.chance(50) ? random.between(2, 4) : 1;
  config.max_step_tokens = config.max_seqs * config.max_row_tokens + random.between(0, 12);
  config.prefill_share = random.pick({0.1, 0.5, 0.75, 1.0});
  config.prefix_cache = random.chance(85);
  config.max_wait_steps = random.pick({0, 2, 256});
  config.host_pages = config.prefix_cache && random.chance(80) ? groups * random.between(1, 16) : 0;
  config.aging_ms = random.pick({1, 20, 10'000});
  config.max_bypass = random.pick({0, 1, 16});
  config.itl_target_ms = random.pick({0.0, 0.0, 2.0});
  config.retention = random.chance(70);
  config.kv_events = random.chance(50);
  config.hash_bits = random.pick({1, 3, 64, 64});
  return config;
}

std::string describe(const Config& config) {
  std::ostringstream out;
  out << "groups";
  for (const CacheGroupConfig& group : config.groups) {
    out << ' ' << group.kind << '(' << group.page_size;
    if (group.window != 0) out << ", window " << group.window;
    out << ')';
  }
  out << "; pages " << config.num_pages << " + " << config.host_pages << " host; seqs "
      << config.max_seqs << "; model_len " << config.max_model_len << "; step_tokens "
      << config.max_step_tokens << "; row_tokens " << config.max_row_tokens << "; share "
      << config.prefill_share << "; cache " << config.prefix_cache << "; wait "
      << config.max_wait_steps << "; aging " << config.aging_ms << "; bypass " << config.max_bypass
      << "; itl " << config.itl_target_ms << "; retention " << config.retention << "; events "
      << config.kv_events << "; hash_bits " << config.hash_bits;
  return out.str();
}

}  // namespace tokenspeed::fuzz
