// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "schedule/request.h"

namespace tokenspeed {

// Requests by deadline. An entry outlives its request: it is recognized by its arrival number,
// which the recycled object no longer has.
class Deadlines {
 public:
  // So that `add` cannot fail. `alive`: how many requests there are; entries of others are dropped
  // when they outnumber them.
  void make_room(int alive) {
    heap_.reserve(heap_.size() + 1);
    if (heap_.size() > 2 * static_cast<std::size_t>(alive) + 64) {
      std::erase_if(heap_, [](const Entry& entry) { return entry.is_over(); });
      std::make_heap(heap_.begin(), heap_.end(), std::greater<>{});
    }
  }

  void add(Request& request) noexcept {
    if (request.deadline_ms != 0) {
      heap_.push_back({request.deadline_ms, request.arrival, &request});
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>{});
    }
  }

  // The next request whose deadline has passed; null when there is none.
  Request* pop_expired(std::int64_t now_ms) noexcept {
    while (!heap_.empty() && heap_.front().deadline_ms <= now_ms) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>{});
      const Entry entry = heap_.back();
      heap_.pop_back();
      if (!entry.is_over()) {
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
    bool is_over() const noexcept { return request->arrival != arrival; }
    bool operator>(const Entry& other) const noexcept {
      return deadline_ms != other.deadline_ms ? deadline_ms > other.deadline_ms
                                              : arrival > other.arrival;
    }
  };

  std::vector<Entry> heap_;  // the earliest first
};

}  // namespace tokenspeed
