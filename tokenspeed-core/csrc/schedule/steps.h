// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "fsm/results.h"

namespace tokenspeed {

struct StepRecord {
  std::int64_t step = 0;
  int prefill_tokens = 0;
  int decode_rows = 0;
  std::vector<fsm::RowRecord> rows;
};

// The steps that were planned with rows and not committed, oldest first. Their storage is used
// again, so a steady state allocates nothing.
class Steps {
 public:
  explicit Steps(int max_rows) : max_rows_(static_cast<std::size_t>(max_rows)) {}

  StepRecord open(std::int64_t step) {
    StepRecord record;
    if (!spare_.empty()) {
      record = std::move(spare_.back());
      spare_.pop_back();
    }
    record.step = step;
    record.rows.clear();
    record.rows.reserve(max_rows_);
    return record;
  }
  void push(StepRecord&& record) { in_flight_.push_back(std::move(record)); }
  void recycle(StepRecord&& record) { spare_.push_back(std::move(record)); }

  bool empty() const noexcept { return in_flight_.empty(); }
  const StepRecord& front() const noexcept { return in_flight_.front(); }
  StepRecord pop() {
    StepRecord record = std::move(in_flight_.front());
    in_flight_.pop_front();
    return record;
  }

 private:
  std::size_t max_rows_;
  std::deque<StepRecord> in_flight_;
  std::vector<StepRecord> spare_;
};

}  // namespace tokenspeed
