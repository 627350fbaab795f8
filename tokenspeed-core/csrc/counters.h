// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>

namespace tokenspeed {

// Only ever grow. Prompt and cached tokens are counted at a request's first admission.
struct Counters {
  std::int64_t steps = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t host_cached_tokens = 0;  // of these, loaded from the host tier
  std::int64_t output_tokens = 0;
  std::int64_t retractions = 0;
  std::int64_t retractions_to_host = 0;
  std::int64_t evictions = 0;  // device pages
  std::int64_t host_evictions = 0;
  std::int64_t page_copies = 0;
  std::int64_t adoptions = 0;
  std::int64_t stored_pages = 0;
  std::int64_t loaded_pages = 0;
  std::int64_t failed_transfers = 0;
  std::int64_t sessions_returned = 0;
  std::int64_t kept_sessions = 0;
  std::int64_t ignored_events = 0;
  std::int64_t rejected_events = 0;
  std::int64_t prefix_waits = 0;
  std::int64_t bypasses = 0;
};

}  // namespace tokenspeed
