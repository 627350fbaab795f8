// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "cache/reservation.h"
#include "cache/transfers.h"
#include "types.h"

// Where a request is in its life. A state is what the request owns there: entering and leaving
// one moves the Reservation, so a page cannot be forgotten on the way.
namespace tokenspeed::fsm {

// In the queue: submitted and never admitted, or retracted. Owns nothing on the device.
struct Waiting {
  static constexpr std::string_view name = "Waiting";
  Waiting() = default;
  Waiting(Waiting&&) noexcept = default;
  Waiting& operator=(Waiting&&) noexcept = default;
};

// Admitted; a transfer brings a part of its prefix from the host tier. The transfer owns the pages
// that it fills, so this state can end at any time.
struct Loading {
  static constexpr std::string_view name = "Loading";
  Reservation reservation;
  LoadTicket ticket{};
};

// Computing its prompt, chunk by chunk.
struct Prefill {
  static constexpr std::string_view name = "Prefill";
  Reservation reservation;
};

// Producing tokens.
struct Decode {
  static constexpr std::string_view name = "Decode";
  Reservation reservation;
};

// Chosen as a victim while a step is in flight: keeps its pages and its tokens until that
// step's commit, then waits again.
struct Retracting {
  static constexpr std::string_view name = "Retracting";
  Reservation reservation;
};

// Over for the client, but a step in flight still writes to its pages.
struct Draining {
  static constexpr std::string_view name = "Draining";
  Reservation reservation;
  Finish finish;
};

struct Finished {
  static constexpr std::string_view name = "Finished";
  explicit Finished(Finish why) noexcept : finish(why) {}
  Finished(Finished&&) noexcept = default;
  Finished& operator=(Finished&&) noexcept = default;
  Finish finish;
};

using State = std::variant<Waiting, Loading, Prefill, Decode, Retracting, Draining, Finished>;

template <class S>
concept Running = std::is_same_v<S, Prefill> || std::is_same_v<S, Decode>;

inline bool is_running(const State& state) noexcept {
  return std::holds_alternative<Prefill>(state) || std::holds_alternative<Decode>(state);
}

// States in which the results of a step still count.
template <class S>
concept Computing = Running<S> || std::is_same_v<S, Retracting>;

// What the request owns on the device; null when it owns nothing.
inline const Reservation* reservation_of(const State& state) noexcept {
  return std::visit(
      [](const auto& s) noexcept -> const Reservation* {
        if constexpr (requires { s.reservation; }) {
          return &s.reservation;
        } else {
          return nullptr;
        }
      },
      state);
}
inline Reservation* reservation_of(State& state) noexcept {
  return const_cast<Reservation*>(reservation_of(std::as_const(state)));
}

static_assert(!std::is_copy_constructible_v<Waiting> && !std::is_copy_constructible_v<Loading> &&
              !std::is_copy_constructible_v<Prefill> &&
              !std::is_copy_constructible_v<Decode> && !std::is_copy_constructible_v<Retracting> &&
              !std::is_copy_constructible_v<Draining> && !std::is_copy_constructible_v<Finished>);
static_assert(std::is_nothrow_move_constructible_v<State> &&
              std::is_nothrow_move_assignable_v<State>);

}  // namespace tokenspeed::fsm
