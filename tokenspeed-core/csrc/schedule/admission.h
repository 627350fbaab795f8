// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>

#include "cache/kv_cache.h"
#include "cache/slot_pool.h"
#include "cache/transfers.h"
#include "schedule/batch.h"
#include "config.h"
#include "schedule/lifecycle.h"
#include "schedule/roster.h"
#include "schedule/rows.h"

namespace tokenspeed {

// Who comes in. The first in the queue goes first; among the next few of its class, one with more
// cached blocks may pass it, and one that fits where it does not. After max_bypass of these,
// nobody comes in before it. Who waits for a block that another computes lets all pass.
class Admission {
 public:
  Admission(const Config& config, KvCache& cache, Transfers& transfers, SlotPool& slots,
            const Roster& roster, Lifecycle& lifecycle, Rows& rows, Counters& counters)
      : config_(config),
        layout_(cache.layout()),
        cache_(cache),
        transfers_(transfers),
        slots_(slots),
        roster_(roster),
        lifecycle_(lifecycle),
        rows_(rows),
        counters_(counters) {}

  // Admits requests and gives each its first chunk while `budget` query tokens last.
  void run(Batch& batch, int budget);

 private:
  Request* choose(const Batch& batch);
  Request* choose_from_window(const Batch& batch, bool& look_again);
  bool same_class(const Request& first, const Request& other) const noexcept;
  int cached_hint(Request& request);
  void match(const Request& request);
  bool can_come_in(Request& request, std::int64_t step);
  bool fits(const Request& request) const noexcept;
  bool fits_somehow(const Request& request);
  bool fits_step(const Batch& batch, const Request& request) const noexcept;
  int pages_needed(const Request& request) const noexcept;
  void admit(Batch& batch, Request& request);
  Reservation reserve(Request& request);
  void take_source(Reservation& reservation);
  void take_pages(const Request& request, Reservation& reservation);
  bool waits(Request& request, std::int64_t step) noexcept;
  bool starts_to_wait(Request& request, std::int64_t step) noexcept;

  // Grows whenever somebody who did not fit might fit now.
  std::uint64_t version() const noexcept {
    const std::uint64_t unpinned = cache_.tree() != nullptr ? cache_.tree()->releases() : 0;
    return 1 + cache_.device().returns() + unpinned + transfers_.ended();
  }

  const Config& config_;
  const Layout& layout_;
  KvCache& cache_;
  Transfers& transfers_;
  SlotPool& slots_;
  const Roster& roster_;
  Lifecycle& lifecycle_;
  Rows& rows_;
  Counters& counters_;
  Match match_;  // of the request in hand
};

}  // namespace tokenspeed
