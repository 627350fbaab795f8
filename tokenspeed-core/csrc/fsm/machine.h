// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#ifdef TOKENSPEED_COVERAGE
#include <array>
#include <cstdint>
#endif
#include <type_traits>
#include <utility>
#include <variant>

#include "fsm/actions.h"
#include "fsm/transitions.h"

namespace tokenspeed::fsm {

template <class S, class E>
concept HasAction = requires(S&& s, E&& e, Request& r, Effects& fx) {
  on(std::move(s), std::move(e), r, fx);
};

#ifdef TOKENSPEED_COVERAGE
// How often each row of the table was taken: the fuzz run asserts that it took them all.
inline std::array<std::uint64_t, Transitions::rows.size()> coverage{};
#endif

// One cell of the table, checked against its action when it is compiled.
template <class S, class E>
OutcomeKind step_cell(S& state, E&& event, Request& request, Effects& fx) noexcept {
  using Outcome = Transitions::outcome<S, E>;
  if constexpr (is_to<Outcome>) {
    using Next = decltype(on(std::move(state), std::move(event), request, fx));
    static_assert(std::is_same_v<Next, typename Outcome::next>, "the action leads elsewhere");
    static_assert(noexcept(on(std::move(state), std::move(event), request, fx)));
#ifdef TOKENSPEED_COVERAGE
    constexpr std::size_t line = Transitions::state_index<S> * Transitions::num_events;
    coverage[line + Transitions::event_index<E>] += 1;
#endif
    request.state = on(std::move(state), std::move(event), request, fx);
    return OutcomeKind::TO;
  } else {
    static_assert(!HasAction<S, E>, "an action for a cell that says ignore or reject");
    return std::is_same_v<Outcome, ignore> ? OutcomeKind::IGNORE : OutcomeKind::REJECT;
  }
}

// The only function that changes a request's state.
template <class E>
OutcomeKind step(Request& request, E&& event, Effects& fx) noexcept {
  static_assert(!std::is_lvalue_reference_v<E>, "events are consumed");
  const OutcomeKind kind = std::visit(
      [&](auto& state) noexcept {
        return step_cell<std::remove_reference_t<decltype(state)>, E>(state, std::move(event),
                                                                      request, fx);
      },
      request.state);
  fx.counters.ignored_events += kind == OutcomeKind::IGNORE ? 1 : 0;
  fx.counters.rejected_events += kind == OutcomeKind::REJECT ? 1 : 0;
  return kind;
}

}  // namespace tokenspeed::fsm
