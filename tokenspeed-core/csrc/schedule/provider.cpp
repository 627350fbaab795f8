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

bool same_tokens(const Request& a, const Request& b, int from_page, int to_page,
                 int page_size) noexcept {
  return std::equal(a.tokens.begin() + from_page * page_size,
                    a.tokens.begin() + to_page * page_size,
                    b.tokens.begin() + from_page * page_size);
}

}  // namespace

int last_page(const Request& request, int page_size) noexcept {
  return (static_cast<int>(request.tokens.size()) - 1) / page_size;
}

// Keys first: they differ for nearly every pair. Then the tokens, which decide.
bool computes_page(const Request& provider, const Request& waiter, int page,
                   int page_size) noexcept {
  const fsm::Prefill* run = prefilling(provider);
  if (run == nullptr || page >= last_page(waiter, page_size) ||
      page >= provider.prefill_end / page_size || page < run->reservation.published()) {
    return false;
  }
  const auto i = static_cast<std::size_t>(page);
  return provider.ns == waiter.ns && provider.keys[i] == waiter.keys[i] &&
         same_tokens(provider, waiter, 0, page + 1, page_size);
}

ProviderWait wait_for(const Request& provider, int page) noexcept {
  return {.provider = &provider,
          .arrival = provider.arrival,
          .admissions = provider.admissions,
          .page = page,
          .progress = provider.computed};
}

bool keep_waiting(Request& waiter, int page_size, int max_idle_plans) noexcept {
  ProviderWait& wait = waiter.wait;
  const Request& provider = *wait.provider;  // requests are recycled, never freed
  const bool same_run = provider.arrival == wait.arrival && provider.admissions == wait.admissions;
  const fsm::Prefill* run = same_run ? prefilling(provider) : nullptr;
  if (run == nullptr) {
    wait = {};
    return false;
  }
  // The pages up to wait.page were compared before; compare the next one only.
  const int page = std::max(wait.page, run->reservation.published());
  if (page >= last_page(waiter, page_size) || page >= provider.prefill_end / page_size ||
      !same_tokens(provider, waiter, wait.page, page + 1, page_size)) {
    wait = {};
    return false;
  }
  const bool progress = provider.computed > wait.progress;
  wait.page = page;
  wait.progress = provider.computed;
  wait.idle_plans = progress ? 0 : wait.idle_plans + 1;
  if (wait.idle_plans >= max_idle_plans) {
    wait = {.given_up = true};
    return false;
  }
  return true;
}

}  // namespace tokenspeed
