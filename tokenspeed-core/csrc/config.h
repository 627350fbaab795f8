// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <vector>

#include "cache/layout.h"
#include "types.h"

namespace tokenspeed {

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
  int host_pages = 0;
  int aging_ms = 10'000;
  int max_bypass = 16;
  double itl_target_ms = 0.0;
  bool retention = true;
  bool kv_events = false;
  int hash_bits = 64;  // tests lower it to force key collisions
  std::uint64_t hash_seed = 0;
};

// Throws std::invalid_argument that names the field.
void check(const Config& config);

}  // namespace tokenspeed
