// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

// The machinery of a transition table that is complete at compile time. It knows nothing of
// requests: transitions.h holds the table itself.
namespace tokenspeed::fsm {

// The three outcomes of an event in a state.
template <class State>
struct to {  // an action turns the state into the next one
  using next = State;
};
struct ignore {};  // legal and without effect: late or duplicate; counted
struct reject {};  // a mistake of the caller of the machine; reported, without effect

template <class Outcome>
inline constexpr bool is_to = false;
template <class State>
inline constexpr bool is_to<to<State>> = true;

// The head line of the table.
template <class... Events>
struct On {};

// One line of the table: an outcome for every event, in the order of the head line.
template <class State_, class... Outcomes>
struct From {
  using State = State_;
};

enum class OutcomeKind : unsigned char { TO, IGNORE, REJECT };

struct TableRow {
  std::size_t state;
  std::size_t event;
  OutcomeKind kind;
  std::size_t next;  // == state unless kind is TO
};

namespace detail {

template <class T, class... Ts>
consteval std::size_t index_of() {
  static_assert((std::is_same_v<T, Ts> + ...) == 1, "each state and each event appears once");
  std::size_t index = 0;
  ((std::is_same_v<T, Ts> ? true : (++index, false)) || ...);
  return index;
}

template <std::size_t I, class T, class... Ts>
struct nth : nth<I - 1, Ts...> {};
template <class T, class... Ts>
struct nth<0, T, Ts...> {
  using type = T;
};

}  // namespace detail

template <class Head, class... Lines>
struct Table;

template <class... Events, class... Lines>
struct Table<On<Events...>, Lines...> {
  static constexpr std::size_t num_events = sizeof...(Events);
  static constexpr std::size_t num_states = sizeof...(Lines);

  template <class Event>
  static constexpr std::size_t event_index = detail::index_of<Event, Events...>();
  template <class State>
  static constexpr std::size_t state_index = detail::index_of<State, typename Lines::State...>();

  static constexpr std::array<std::string_view, num_events> event_names{Events::name...};
  static constexpr std::array<std::string_view, num_states> state_names{Lines::State::name...};

 private:
  // A line that is too short or too long does not compile.
  template <std::size_t Event, class Line>
  struct cell;
  template <std::size_t Event, class State, class... Outcomes>
  struct cell<Event, From<State, Outcomes...>> {
    static_assert(sizeof...(Outcomes) == num_events, "a line answers every event");
    using type = typename detail::nth<Event, Outcomes...>::type;
  };

  template <class Outcome>
  static consteval TableRow make_row(std::size_t state, std::size_t event) {
    if constexpr (is_to<Outcome>) {
      return {state, event, OutcomeKind::TO, state_index<typename Outcome::next>};
    } else if constexpr (std::is_same_v<Outcome, ignore>) {
      return {state, event, OutcomeKind::IGNORE, state};
    } else {
      static_assert(std::is_same_v<Outcome, reject>, "an outcome is to<S>, ignore or reject");
      return {state, event, OutcomeKind::REJECT, state};
    }
  }

  template <class Line>
  static constexpr void fill(std::array<TableRow, num_states * num_events>& rows) {
    constexpr std::size_t state = state_index<typename Line::State>;
    ((rows[state * num_events + event_index<Events>] =
          make_row<typename cell<event_index<Events>, Line>::type>(state, event_index<Events>)),
     ...);
  }

 public:
  template <class State, class Event>
  using outcome = typename cell<event_index<Event>,
                                typename detail::nth<state_index<State>, Lines...>::type>::type;

  static constexpr std::array<TableRow, num_states * num_events> rows = [] {
    std::array<TableRow, num_states * num_events> all{};
    (fill<Lines>(all), ...);
    return all;
  }();

  // Is `target` reachable from `start` when the events in Without never happen?
  template <class... Without>
  static consteval bool reachable(std::size_t start, std::size_t target) {
    std::array<bool, num_states> seen{};
    seen[start] = true;
    for (std::size_t round = 0; round < num_states; ++round) {
      for (const TableRow& row : rows) {
        const bool allowed = ((row.event != event_index<Without>) && ... && true);
        if (allowed && seen[row.state]) {
          seen[row.next] = true;
        }
      }
    }
    return seen[target];
  }

  template <class Start>
  static consteval bool every_state_reachable_from() {
    bool all = true;
    for (std::size_t state = 0; state < num_states; ++state) {
      all &= reachable<>(state_index<Start>, state);
    }
    return all;
  }

  template <class Target, class... Without>
  static consteval bool reachable_from_every_state_without() {
    bool all = true;
    for (std::size_t state = 0; state < num_states; ++state) {
      all &= reachable<Without...>(state, state_index<Target>);
    }
    return all;
  }
};

}  // namespace tokenspeed::fsm
