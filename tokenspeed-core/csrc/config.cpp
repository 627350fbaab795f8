// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "config.h"

#include <numeric>
#include <stdexcept>
#include <string>

namespace tokenspeed {
namespace {

// Far above any machine, and far enough below overflow.
constexpr int kMost = 1 << 28;
constexpr double kMostMs = 1e6;

// A block is the least common multiple of the page sizes; one of millions of tokens is a mistake.
constexpr int kMaxBlock = 65536;

void require(bool condition, const std::string& message) {
  if (!condition) {
    throw std::invalid_argument(message);
  }
}

void require_positive(int value, const char* name) {
  require(value >= 1, std::string(name) + " must be at least 1, not " + std::to_string(value));
}

void require_count(int value, const char* name) {
  require_positive(value, name);
  require(value <= kMost, std::string(name) + " must be at most " + std::to_string(kMost) +
                              ", not " + std::to_string(value));
}

void check_groups(const Config& config) {
  const auto count = config.groups.size();
  require(count >= 1 && count <= kMaxGroups,
          "groups: 1 to " + std::to_string(kMaxGroups) + " are supported, not " +
              std::to_string(count));
  long block = 1;
  for (const CacheGroupConfig& group : config.groups) {
    require(group.kind == "full" || group.kind == "sliding" || group.kind == "state",
            "groups: kind must be \"full\", \"sliding\" or \"state\", not \"" + group.kind + "\"");
    require_positive(group.page_size, "page_size");
    require(group.kind != "sliding" || group.window >= 1,
            "groups: a sliding group needs a window of at least 1 token");
    require(group.kind != "state" || config.max_row_tokens == 1,
            "max_row_tokens: a state group cannot be rolled back, so it must be 1");
    block = std::lcm(block, static_cast<long>(group.page_size));
    require(block <= kMaxBlock, "groups: the least common multiple of the page sizes is above " +
                                    std::to_string(kMaxBlock));
  }
}

}  // namespace

void check(const Config& config) {
  require_positive(config.max_row_tokens, "max_row_tokens");
  check_groups(config);
  require_count(config.num_pages, "num_pages");
  require_count(config.max_seqs, "max_seqs");
  require_count(config.max_model_len, "max_model_len");
  require_count(config.max_step_tokens, "max_step_tokens");
  require(config.host_pages <= kMost, "host_pages must be at most " + std::to_string(kMost));
  require(config.max_step_tokens >= config.max_seqs,
          "max_step_tokens (" + std::to_string(config.max_step_tokens) +
              ") must be at least max_seqs (" + std::to_string(config.max_seqs) +
              "), so that every running request gets a token in every step");
  require(config.prefill_share > 0.0 && config.prefill_share <= 1.0,
          "prefill_share must be in (0, 1]");
  require(config.max_wait_steps >= 0, "max_wait_steps must not be negative");
  require(config.host_pages >= 0, "host_pages must not be negative");
  require(config.host_pages == 0 || config.prefix_cache,
          "host_pages: the host tier needs prefix_cache");
  require(config.aging_ms >= 0, "aging_ms must not be negative");
  require(config.max_bypass >= 0, "max_bypass must not be negative");
  require(config.itl_target_ms >= 0.0 && config.itl_target_ms <= kMostMs,
          "itl_target_ms must be in 0..1000000");
  require(config.hash_bits >= 1 && config.hash_bits <= 64, "hash_bits must be in 1..64");
}

}  // namespace tokenspeed
