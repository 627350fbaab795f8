// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>

namespace tokenspeed {

// How many prefill tokens a step may hold while at least one row decodes.
//
// Without a target that is a fixed share of a step. With one it is what fits: a step is taken to
// cost base + tokens * per_token, both are learned from the steps that are committed, and the
// limit is where the line meets the target. A target that cannot be met never stops prefill:
// a sixteenth of a step, or 16 tokens if that is more, always goes.
class PrefillBudget {
 public:
  // `target_us`: how long a step may take that decodes; 0 for none.
  PrefillBudget(int max_step_tokens, double prefill_share, std::int64_t target_us) noexcept;

  // A committed step. `elapsed_us` <= 0: unknown, says nothing. Every rank has to be told the same.
  void observe(int prefill_tokens, int decode_rows, std::int64_t elapsed_us) noexcept;

  int limit() const noexcept { return limit_; }

 private:
  void learn(double tokens, double elapsed_us) noexcept;
  void adjust(int tried) noexcept;

  int most_;
  int least_;
  double target_us_;
  int limit_;
  bool learned_ = false;
  double base_us_ = 0.0;
  double per_token_us_ = 0.0;
};

}  // namespace tokenspeed
