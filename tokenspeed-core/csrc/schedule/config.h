// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <string>
#include <vector>

#include "types.h"

namespace tokenspeed {

struct CacheGroupConfig {
  std::string kind;
  int page_size = 0;
};

struct Config {
  std::vector<CacheGroupConfig> groups;
  int num_pages = 0;
  int max_seqs = 0;
  int max_model_len = 0;
  int max_step_tokens = 0;
  double prefill_share = 0.75;
  bool prefix_cache = true;
  int max_wait_steps = 256;
  int max_row_tokens = 1;
  int hash_bits = 64;  // tests lower it to force key collisions

  int page_size() const { return groups.front().page_size; }

  // The most query tokens that prefill gets while at least one row decodes.
  int prefill_limit() const;

  // The longest page table that a request can come to have.
  int max_pages_per_request() const;
};

// Throws std::invalid_argument that names the field.
void check(const Config& config);

}  // namespace tokenspeed
