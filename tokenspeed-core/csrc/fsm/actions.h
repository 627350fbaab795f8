// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <utility>

#include "fsm/effects.h"
#include "fsm/events.h"
#include "fsm/states.h"
#include "schedule/request.h"

// on(state, event, ...) -> next state: one function per `to` cell of the table. machine.h checks
// each return type against its cell. All are noexcept: what can fail was done before.
namespace tokenspeed::fsm {

// Building blocks.
void start_run(Request& request, const Reservation& reservation, const Effects& fx) noexcept;
void end_run(Request& request, const Effects& fx) noexcept;
void advance_kv(Request& request, Reservation& reservation, int kv_len, Effects& fx) noexcept;
void append_token(Request& request, TokenId token, Finish finish, Effects& fx) noexcept;
void report_end(const Request& request, Finish finish, Effects& fx) noexcept;

inline Prefill on(Waiting&&, Admit&& event, Request& request, Effects& fx) noexcept {
  start_run(request, event.reservation, fx);
  return {std::move(event.reservation)};
}

template <Computing S>
  requires(!std::is_same_v<S, Decode>)
S on(S&& state, ChunkDone&& event, Request& request, Effects& fx) noexcept {
  advance_kv(request, state.reservation, event.kv_len, fx);
  return std::move(state);
}

inline Decode on(Prefill&& state, PromptDone&& event, Request& request, Effects& fx) noexcept {
  advance_kv(request, state.reservation, event.kv_len, fx);
  append_token(request, event.token, Finish::NONE, fx);
  return {std::move(state.reservation)};
}

inline Retracting on(Retracting&& state, PromptDone&& event, Request& request,
                     Effects& fx) noexcept {
  advance_kv(request, state.reservation, event.kv_len, fx);
  append_token(request, event.token, Finish::NONE, fx);
  return std::move(state);
}

template <Computing S>
  requires(!std::is_same_v<S, Prefill>)
S on(S&& state, Token&& event, Request& request, Effects& fx) noexcept {
  advance_kv(request, state.reservation, event.kv_len, fx);
  append_token(request, event.token, Finish::NONE, fx);
  return std::move(state);
}

template <Computing S>
Draining on(S&& state, Stopped&& event, Request& request, Effects& fx) noexcept {
  advance_kv(request, state.reservation, event.kv_len, fx);
  append_token(request, event.token, event.finish, fx);
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

template <Running S>
Retracting on(S&& state, Retract&&, Request&, Effects& fx) noexcept {
  fx.counters.retractions += 1;
  return {std::move(state.reservation)};
}

// The reservation ends here and in the next function, and nowhere else.
inline Waiting on(Retracting&& state, Drained&&, Request& request, Effects& fx) noexcept {
  [[maybe_unused]] const Reservation released = std::move(state.reservation);
  end_run(request, fx);
  return {};
}

inline Finished on(Draining&& state, Drained&&, Request&, Effects&) noexcept {
  [[maybe_unused]] const Reservation released = std::move(state.reservation);
  return Finished(state.finish);
}

}  // namespace tokenspeed::fsm
