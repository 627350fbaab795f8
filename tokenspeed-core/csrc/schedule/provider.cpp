// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/provider.h"

#include <algorithm>
#include <variant>

namespace tokenspeed {
namespace {

// Null once the request ended, was retracted, or has its whole prompt.
const fsm::Prefill* prefilling(const Request& request) noexcept {
  return std::get_if<fsm::Prefill>(&request.state);
}

bool same_tokens(const Request& a, const Request& b, int from_block, int to_block,
                 int block_size) noexcept {
  return std::equal(a.tokens.begin() + from_block * block_size,
                    a.tokens.begin() + to_block * block_size,
                    b.tokens.begin() + from_block * block_size);
}

}  // namespace

int last_block(const Request& request, int block_size) noexcept {
  return (static_cast<int>(request.tokens.size()) - 1) / block_size;
}

// Keys first: they differ for nearly every pair. Then the tokens, which decide.
bool computes_block(const Request& provider, const Request& waiter, int block,
                   int block_size) noexcept {
  const fsm::Prefill* run = prefilling(provider);
  if (run == nullptr || provider.unpublishable || block >= last_block(waiter, block_size) ||
      block >= provider.prefill_end / block_size || block < run->reservation.published()) {
    return false;
  }
  const auto i = static_cast<std::size_t>(block);
  return provider.ns == waiter.ns && provider.keys[i] == waiter.keys[i] &&
         same_tokens(provider, waiter, 0, block + 1, block_size);
}

ProviderWait wait_for(const Request& provider, int block, std::int64_t step) noexcept {
  return {.provider = &provider,
          .arrival = provider.arrival,
          .admissions = provider.admissions,
          .block = block,
          .progress = provider.computed,
          .looked_at = step};
}

bool keep_waiting(Request& waiter, int block_size, int max_idle_plans,
                  std::int64_t step) noexcept {
  ProviderWait& wait = waiter.wait;
  if (wait.looked_at == step) {
    return true;
  }
  wait.looked_at = step;
  const Request& provider = *wait.provider;  // requests are recycled, never freed
  const bool same_run = provider.arrival == wait.arrival && provider.admissions == wait.admissions;
  const fsm::Prefill* run = same_run ? prefilling(provider) : nullptr;
  if (run == nullptr) {
    wait = {};
    return false;
  }
  // The blocks up to wait.block were compared before; compare the next one only.
  const int block = std::max(wait.block, run->reservation.published());
  if (block >= last_block(waiter, block_size) || block >= provider.prefill_end / block_size ||
      !same_tokens(provider, waiter, wait.block, block + 1, block_size)) {
    wait = {};
    return false;
  }
  const bool progress = provider.computed > wait.progress;
  wait.block = block;
  wait.progress = provider.computed;
  wait.idle_plans = progress ? 0 : wait.idle_plans + 1;
  if (wait.idle_plans >= max_idle_plans) {
    wait = {.given_up = true};
    return false;
  }
  return true;
}

}  // namespace tokenspeed
