// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/config.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace tokenspeed {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) {
    throw std::invalid_argument(message);
  }
}

void require_positive(int value, const char* name) {
  require(value >= 1, std::string(name) + " must be at least 1, not " + std::to_string(value));
}

}  // namespace

int Config::prefill_limit() const {
  const auto share = static_cast<int>(std::floor(prefill_share * max_step_tokens + 0.5));
  return std::clamp(share, 1, max_step_tokens);
}

int Config::max_pages_per_request() const {
  return std::min(ceil_div(max_model_len, page_size()), num_pages);
}

void check(const Config& config) {
  require(config.groups.size() == 1 && config.groups.front().kind == "full",
          "groups: exactly one group of kind \"full\" is supported");
  require_positive(config.groups.front().page_size, "page_size");
  require_positive(config.num_pages, "num_pages");
  require_positive(config.max_seqs, "max_seqs");
  require_positive(config.max_model_len, "max_model_len");
  require(config.max_step_tokens >= config.max_seqs,
          "max_step_tokens (" + std::to_string(config.max_step_tokens) +
              ") must be at least max_seqs (" + std::to_string(config.max_seqs) +
              "), so that every running request gets a token in every step");
  require(config.prefill_share > 0.0 && config.prefill_share <= 1.0,
          "prefill_share must be in (0, 1]");
  require(config.max_wait_steps >= 0, "max_wait_steps must not be negative");
  require(config.max_row_tokens == 1, "max_row_tokens: only 1 is supported");
  require(config.hash_bits >= 1 && config.hash_bits <= 64, "hash_bits must be in 1..64");
}

}  // namespace tokenspeed
