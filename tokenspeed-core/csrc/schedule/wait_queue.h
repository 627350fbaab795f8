// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include "schedule/request.h"

namespace tokenspeed {

// The waiting requests in the order of their turn. The links are in the requests: no call
// allocates.
class WaitQueue {
 public:
  Request* front() const noexcept { return front_; }
  int size() const noexcept { return size_; }
  std::int64_t tokens() const noexcept { return tokens_; }

  void insert(Request& request) noexcept;
  void remove(Request& request) noexcept;

 private:
  Request* before(const Request& request) const noexcept;

  Request* front_ = nullptr;
  Request* back_ = nullptr;
  int size_ = 0;
  std::int64_t tokens_ = 0;
};

}  // namespace tokenspeed
