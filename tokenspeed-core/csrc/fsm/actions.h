// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <span>
#include <utility>

#include "fsm/effects.h"
#include "fsm/events.h"
#include "fsm/states.h"
#include "schedule/request.h"

// on(state, event, ...) -> next state: one function per `to` cell of the table. machine.h checks
// each return type against its cell. All are noexcept: what can fail was done before.
namespace tokenspeed::fsm {

// Building blocks.
void start_run(Request& request, int cached) noexcept;
void count_hits(Request& request, Effects& fx) noexcept;
void cancel_run(Request& request) noexcept;
void end_run(Request& request, Reservation&& reservation, Finish finish, Effects& fx) noexcept;
void advance_kv(Request& request, Reservation& reservation, int kv_len, Effects& fx) noexcept;
void append_tokens(Request& request, std::span<const TokenId> tokens, Finish finish,
                   Effects& fx) noexcept;
void report_end(const Request& request, Finish finish, Effects& fx) noexcept;

inline Prefill on(Waiting&&, Admit&& event, Request& request, Effects& fx) noexcept {
  start_run(request, event.cached);
  count_hits(request, fx);
  return {std::move(event.reservation)};
}

inline Loading on(Waiting&&, Load&& event, Request& request, Effects&) noexcept {
  start_run(request, event.cached);
  request.loading_tokens = event.from_host;
  return {std::move(event.reservation), std::move(event.ticket)};
}

inline Prefill on(Loading&& state, Loaded&&, Request& request, Effects& fx) noexcept {
  count_hits(request, fx);
  return {std::move(state.reservation)};
}

template <class E>
  requires(std::is_same_v<E, LoadFailed> || std::is_same_v<E, Retract>)
Waiting on(Loading&& state, E&&, Request& request, Effects& fx) noexcept {
  fx.counters.retractions += std::is_same_v<E, Retract> ? 1 : 0;
  [[maybe_unused]] const Reservation released = std::move(state.reservation);
  cancel_run(request);
  return {};
}

template <Computing S>
  requires(!std::is_same_v<S, Decode>)
S on(S&& state, ChunkDone&& event, Request& request, Effects& fx) noexcept {
  advance_kv(request, state.reservation, event.kv_len, fx);
  return std::move(state);
}

inline Decode on(Prefill&& state, PromptDone&& event, Request& request, Effects& fx) noexcept {
  advance_kv(request, state.reservation, event.kv_len, fx);
  append_tokens(request, event.tokens, Finish::NONE, fx);
  return {std::move(state.reservation)};
}

inline Retracting on(Retracting&& state, PromptDone&& event, Request& request,
                     Effects& fx) noexcept {
  advance_kv(request, state.reservation, event.kv_len, fx);
  append_tokens(request, event.tokens, Finish::NONE, fx);
  return std::move(state);
}

// The KV of a decode row's first input, the last token that is known, and of every accepted draft.
// The drafts are known only now, so the tokens come first.
template <Computing S>
  requires(!std::is_same_v<S, Prefill>)
S on(S&& state, Token&& event, Request& request, Effects& fx) noexcept {
  append_tokens(request, event.tokens, Finish::NONE, fx);
  advance_kv(request, state.reservation, event.kv_len, fx);
  return std::move(state);
}

template <Computing S>
Draining on(S&& state, Stopped&& event, Request& request, Effects& fx) noexcept {
  append_tokens(request, event.tokens, event.finish, fx);
  advance_kv(request, state.reservation, event.kv_len, fx);
  return {std::move(state.reservation), event.finish};
}

template <Computing S, Ending E>
Draining on(S&& state, E&&, Request& request, Effects& fx) noexcept {
  report_end(request, E::finish, fx);
  return {std::move(state.reservation), E::finish};
}

template <Cancelling E>
Finished on(Waiting&&, E&&, Request& request, Effects& fx) noexcept {
  report_end(request, E::finish, fx);
  return Finished(E::finish);
}

template <Cancelling E>
Finished on(Loading&& state, E&&, Request& request, Effects& fx) noexcept {
  [[maybe_unused]] const Reservation released = std::move(state.reservation);
  report_end(request, E::finish, fx);
  return Finished(E::finish);
}

template <Running S>
Retracting on(S&& state, Retract&&, Request&, Effects& fx) noexcept {
  fx.counters.retractions += 1;
  return {std::move(state.reservation)};
}

// Back to the queue: prompt and answer so far are its prompt now.
inline Waiting on(Retracting&& state, Drained&&, Request& request, Effects& fx) noexcept {
  end_run(request, std::move(state.reservation), Finish::NONE, fx);
  return {};
}

inline Finished on(Draining&& state, Drained&&, Request& request, Effects& fx) noexcept {
  end_run(request, std::move(state.reservation), state.finish, fx);
  return Finished(state.finish);
}

}  // namespace tokenspeed::fsm
