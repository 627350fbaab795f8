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
  std::int64_t output_tokens = 0;
  std::int64_t retractions = 0;
  std::int64_t evictions = 0;
  std::int64_t ignored_events = 0;
  std::int64_t rejected_events = 0;
  std::int64_t prefix_waits = 0;
};

}  // namespace tokenspeed
