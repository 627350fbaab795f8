// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "schedule/request.h"
#include "schedule/wait_queue.h"

namespace tokenspeed {

// Every request there is, and the lists that follow from its state:
//
//   Waiting                    queue()
//   Loading, Prefill, Decode   running(), in the order of their turn
//   Retracting, Draining       leaving()
//   Finished                   recycled at once
//
// An id is known until the request's end is reported; what drains after that has no name.
class Roster {
 public:
  explicit Roster(int max_seqs) { running_.reserve(static_cast<std::size_t>(max_seqs)); }

  Request* find(RequestId id) const noexcept;
  // Adds a waiting request under a new arrival number. Changes nothing if it throws.
  Request& add(Request&& request);

  // Brings the lists up to date after the request's state changed.
  void follow(Request& request, std::size_t old_state) noexcept;

  const std::vector<Request*>& running() const noexcept { return running_; }
  const WaitQueue& queue() const noexcept { return queue_; }
  int leaving() const noexcept { return leaving_; }
  int alive() const noexcept { return static_cast<int>(all_.size() - blank_.size()); }
  int loading() const noexcept { return loading_; }

  template <class F>
  void for_each(F&& visit) const {
    for (const auto& request : all_) {
      visit(*request);
    }
  }

 private:
  void leave(Request& request, std::size_t old_state) noexcept;
  void enter(Request& request) noexcept;

  std::vector<std::unique_ptr<Request>> all_;
  std::vector<Request*> blank_;  // of these, the unused ones
  std::unordered_map<RequestId, Request*> by_id_;  // looked up only, never walked
  std::vector<Request*> running_;
  WaitQueue queue_;
  int leaving_ = 0;
  int loading_ = 0;
  std::uint64_t arrivals_ = 0;
};

}  // namespace tokenspeed
