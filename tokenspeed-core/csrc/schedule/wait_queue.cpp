// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/wait_queue.h"

namespace tokenspeed {

// Whom to stand behind: a retracted request is among the first, a new one among the last.
Request* WaitQueue::before(const Request& request) const noexcept {
  if (front_ == nullptr || request.before(*front_)) {
    return nullptr;
  }
  Request* it = back_;
  while (request.before(*it)) {
    it = it->previous;
  }
  return it;
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
