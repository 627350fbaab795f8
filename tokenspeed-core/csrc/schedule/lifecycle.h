// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "fsm/machine.h"
#include "schedule/roster.h"

namespace tokenspeed {

// An event that the table rejects: a bug of ours, reported and without effect.
struct RejectedEvent {
  RequestId request;
  std::string_view state;
  std::string_view event;
};

// The one way to send an event to a request: the machine changes its state, the roster follows.
class Lifecycle {
 public:
  Lifecycle(Roster& roster, fsm::Effects effects) : roster_(roster), effects_(effects) {
    rejected_.reserve(kMaxRejected);
  }

  template <class E>
  void send(Request& request, E&& event) noexcept {
    const std::size_t old_state = request.state.index();
    const fsm::OutcomeKind kind = fsm::step(request, std::forward<E>(event), effects_);
    if (kind == fsm::OutcomeKind::TO) {
      roster_.follow(request, old_state);
    } else if (kind == fsm::OutcomeKind::REJECT && rejected_.size() < kMaxRejected) {
      rejected_.push_back({request.id, fsm::Transitions::state_names[old_state], E::name});
    }
  }

  // In-flight rule: pages go back at the first commit after the request's last step, and at once
  // when none is in flight. The request may be gone afterwards.
  void settle(Request& request) noexcept {
    if (request.in_flight == 0 && (std::holds_alternative<fsm::Draining>(request.state) ||
                                   std::holds_alternative<fsm::Retracting>(request.state))) {
      send(request, fsm::Drained{});
    }
  }

  // Ends a request from outside; the caller made room for one update.
  template <fsm::Ending E>
  void end(Request& request, E&& event) noexcept {
    send(request, std::move(event));
    settle(request);
  }

  void retract(Request& request) noexcept {
    send(request, fsm::Retract{});
    settle(request);
  }

  std::vector<RejectedEvent> take_rejected() {
    std::vector<RejectedEvent> taken = rejected_;
    rejected_.clear();
    return taken;
  }

 private:
  static constexpr std::size_t kMaxRejected = 64;

  Roster& roster_;
  fsm::Effects effects_;
  std::vector<RejectedEvent> rejected_;
};

}  // namespace tokenspeed
