// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/wait_queue.h"

#include <utility>

namespace tokenspeed {

// Whom to stand behind: most new requests come last, a retracted one is among the first.
Request* WaitQueue::before(const Request& request) const noexcept {
  if (back_ == nullptr || back_->before(request)) {
    return back_;
  }
  Request* previous = nullptr;
  for (Request* it = front_; it->before(request); it = it->next) {
    previous = it;
  }
  return previous;
}

void WaitQueue::insert(Request& request) noexcept {
  request.previous = before(request);
  request.next = request.previous != nullptr ? request.previous->next : front_;
  (request.previous != nullptr ? request.previous->next : front_) = &request;
  (request.next != nullptr ? request.next->previous : back_) = &request;
  size_ += 1;
  tokens_ += static_cast<std::int64_t>(request.tokens.size());
}

void WaitQueue::remove(Request& request) noexcept {
  (request.previous != nullptr ? request.previous->next : front_) = request.next;
  (request.next != nullptr ? request.next->previous : back_) = request.previous;
  request.previous = nullptr;
  request.next = nullptr;
  size_ -= 1;
  tokens_ -= static_cast<std::int64_t>(request.tokens.size());
}

}  // namespace tokenspeed
