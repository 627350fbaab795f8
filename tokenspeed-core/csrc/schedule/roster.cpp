// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/roster.h"

#include <algorithm>

#include "fsm/transitions.h"

namespace tokenspeed {
namespace {

using fsm::Transitions;

enum class List { QUEUE, RUNNING, LEAVING, NONE };

constexpr List list_of(std::size_t state) noexcept {
  switch (state) {
    case Transitions::state_index<fsm::Waiting>:
      return List::QUEUE;
    case Transitions::state_index<fsm::Loading>:
    case Transitions::state_index<fsm::Prefill>:
    case Transitions::state_index<fsm::Decode>:
      return List::RUNNING;
    case Transitions::state_index<fsm::Retracting>:
    case Transitions::state_index<fsm::Draining>:
      return List::LEAVING;
    default:
      return List::NONE;
  }
}

constexpr bool is_over(std::size_t state) noexcept {
  return state == Transitions::state_index<fsm::Draining> ||
         state == Transitions::state_index<fsm::Finished>;
}

// Where a request stands, or would stand, among the running ones.
auto position(auto& running, const Request& request) noexcept {
  return std::lower_bound(running.begin(), running.end(), &request,
                          [](const Request* r, const Request* other) { return r->before(*other); });
}

}  // namespace

Request* Roster::find(RequestId id) const noexcept {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

Request& Roster::add(Request&& request) {
  if (blank_.empty()) {
    if (blank_.capacity() <= all_.size()) {  // so that recycling never allocates
      blank_.reserve(2 * all_.size() + 16);
    }
    all_.push_back(std::make_unique<Request>());
    blank_.push_back(all_.back().get());
  }
  Request* const added = blank_.back();
  by_id_.emplace(request.id, added);
  blank_.pop_back();
  *added = std::move(request);
  added->arrival = ++arrivals_;
  queue_.insert(*added);
  return *added;
}

void Roster::follow(Request& request, std::size_t old_state) noexcept {
  const std::size_t new_state = request.state.index();
  if (old_state == new_state) {
    return;
  }
  loading_ += new_state == Transitions::state_index<fsm::Loading> ? 1 : 0;
  loading_ -= old_state == Transitions::state_index<fsm::Loading> ? 1 : 0;
  if (is_over(new_state) && !is_over(old_state)) {
    by_id_.erase(request.id);
  }
  if (list_of(old_state) != list_of(new_state)) {
    leave(request, old_state);
    enter(request);
  }
}

void Roster::leave(Request& request, std::size_t old_state) noexcept {
  switch (list_of(old_state)) {
    case List::QUEUE:
      queue_.remove(request);
      break;
    case List::RUNNING:
      running_.erase(position(running_, request));
      break;
    case List::LEAVING:
      leaving_ -= 1;
      break;
    case List::NONE:
      break;
  }
}

void Roster::enter(Request& request) noexcept {
  switch (list_of(request.state.index())) {
    case List::QUEUE:
      queue_.insert(request);
      break;
    case List::RUNNING:
      running_.insert(position(running_, request), &request);
      break;
    case List::LEAVING:
      leaving_ += 1;
      break;
    case List::NONE:
      request = Request{};
      blank_.push_back(&request);
      break;
  }
}

}  // namespace tokenspeed
