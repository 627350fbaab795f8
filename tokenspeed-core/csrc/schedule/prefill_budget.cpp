// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/prefill_budget.h"

#include <algorithm>

namespace tokenspeed {

namespace {

constexpr double kRate = 0.25;          // how much of an error one step corrects
constexpr double kTrust = 0.5;          // an error counts up to this share of what was expected
constexpr double kLeastTokenUs = 1e-3;  // no token is free

int share_of(int tokens, double share) noexcept {
  return std::clamp(static_cast<int>(share * tokens + 0.5), 1, tokens);
}

}  // namespace

PrefillBudget::PrefillBudget(int max_step_tokens, double prefill_share,
                             std::int64_t target_us) noexcept
    : most_(max_step_tokens),
      least_(std::min(std::max(max_step_tokens / 16, 16), max_step_tokens)),
      target_us_(static_cast<double>(target_us)),
      limit_(target_us > 0 ? least_ : share_of(max_step_tokens, prefill_share)) {}

// A step in which nobody decodes delays nobody, and costs something else.
void PrefillBudget::observe(int prefill_tokens, int decode_rows, std::int64_t elapsed_us) noexcept {
  if (target_us_ <= 0.0 || elapsed_us <= 0 || decode_rows <= 0) {
    return;
  }
  learn(prefill_tokens, static_cast<double>(elapsed_us));
  adjust(prefill_tokens);
}

// Normalized least mean squares over (1, tokens / limit): a step without prefill corrects the
// base alone, a full one both alike. However few kinds of steps there are, what is expected of
// them becomes right, where a regression over equal steps would have no slope.
void PrefillBudget::learn(double tokens, double elapsed_us) noexcept {
  const double scale = limit_;
  const double x = tokens / scale;
  if (!learned_) {
    learned_ = true;
    base_us_ = elapsed_us / (1.0 + x);
    per_token_us_ = base_us_ / scale;
    return;
  }
  const double expected = base_us_ + per_token_us_ * tokens;
  const double trusted = kTrust * expected;
  const double error = std::clamp(elapsed_us - expected, -trusted, trusted);
  const double step = kRate * error / (1.0 + x * x);
  base_us_ = std::max(base_us_ + step, 0.0);
  per_token_us_ = std::max(per_token_us_ + step * x / scale, kLeastTokenUs);
}

// It grows to at most twice what was tried, for the line is known no further; it shrinks at once.
void PrefillBudget::adjust(int tried) noexcept {
  const double fits = (target_us_ - base_us_) / per_token_us_;
  const int bound = std::min(most_, std::max(limit_, 2 * tried));
  limit_ = static_cast<int>(
      std::clamp(fits, static_cast<double>(least_), static_cast<double>(std::max(bound, least_))));
}

}  // namespace tokenspeed
