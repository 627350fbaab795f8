// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "fsm/actions.h"

#include <cassert>
#include <span>

namespace tokenspeed::fsm {

void start_run(Request& request, const Reservation& reservation, const Effects& fx) noexcept {
  const int cached = reservation.matched() * fx.page_size;
  request.prefill_end = static_cast<int>(request.tokens.size());
  request.computed = cached;
  request.planned = cached;
  request.wait = {};
  if (request.admissions++ == 0) {
    request.cached_tokens = cached;
    fx.counters.prompt_tokens += request.prompt_len;
    fx.counters.cached_tokens += cached;
  }
}

// Back to the queue: prompt and answer so far are its prompt now.
void end_run(Request& request, const Effects& fx) noexcept {
  assert(request.in_flight == 0 && request.planned_outputs == request.outputs());
  request.computed = 0;
  request.planned = 0;
  if (fx.tree != nullptr) {
    fx.hasher.extend(request.ns, request.tokens, request.keys);
  }
}

// Publishes every page that this commit filled. All tokens below kv_len are committed ones: a
// row's input was the output of a row that was committed before it.
void advance_kv(Request& request, Reservation& reservation, int kv_len, Effects& fx) noexcept {
  assert(kv_len <= static_cast<int>(request.tokens.size()) && kv_len > request.computed);
  request.computed = kv_len;
  if (fx.tree == nullptr) {
    return;
  }
  const std::span<const TokenId> known(request.tokens.data(), static_cast<std::size_t>(kv_len));
  fx.hasher.extend(request.ns, known, request.keys);
  while ((reservation.published() + 1) * fx.page_size <= kv_len) {
    reservation.publish_next(*fx.tree,
                             request.prefix().page(reservation.published(), fx.page_size));
  }
}

void append_token(Request& request, TokenId token, Finish finish, Effects& fx) noexcept {
  assert(request.tokens.size() < request.tokens.capacity());
  request.tokens.push_back(token);
  fx.counters.output_tokens += 1;
  const TokenId stop = finish == Finish::STOP ? token : -1;
  fx.updates.add({request.id, finish, stop, request.cached_tokens}, token);
}

void report_end(const Request& request, Finish finish, Effects& fx) noexcept {
  fx.updates.add({request.id, finish, -1, request.cached_tokens});
}

}  // namespace tokenspeed::fsm
