// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "schedule/request.h"

namespace tokenspeed {

// Requests by deadline. An entry outlives its request: it is recognized by its arrival number,
// which the recycled object no longer has.
class Deadlines {
 public:
  void add(Request& request) {
    if (request.deadline_ms != 0) {
      heap_.push({request.deadline_ms, request.arrival, &request});
    }
  }

  // The next request whose deadline has passed; null when there is none.
  Request* pop_expired(std::int64_t now_ms) {
    while (!heap_.empty() && heap_.top().deadline_ms <= now_ms) {
      const Entry entry = heap_.top();
      heap_.pop();
      if (entry.request->arrival == entry.arrival) {
        return entry.request;
      }
    }
    return nullptr;
  }

 private:
  struct Entry {
    std::int64_t deadline_ms;
    std::uint64_t arrival;
    Request* request;
    bool operator>(const Entry& other) const noexcept {
      return deadline_ms != other.deadline_ms ? deadline_ms > other.deadline_ms
                                              : arrival > other.arrival;
    }
  };

  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap_;
};

}  // namespace tokenspeed
