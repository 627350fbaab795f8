// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <optional>

#include "schedule/batch.h"
#include "schedule/config.h"
#include "schedule/lifecycle.h"
#include "schedule/resources.h"
#include "schedule/roster.h"

namespace tokenspeed {

// Who comes in, in order of arrival. The first request that does not fit keeps everybody behind
// it out; only one that waits for a page that another computes lets others pass.
class Admission {
 public:
  Admission(const Config& config, Resources& resources, const Roster& roster, Lifecycle& lifecycle,
            Counters& counters)
      : page_size_(config.page_size()),
        max_wait_steps_(config.max_wait_steps),
        resources_(resources),
        roster_(roster),
        lifecycle_(lifecycle),
        counters_(counters) {}

  // Admits requests and gives each its first chunk while `budget` query tokens last.
  void run(Batch& batch, int budget);

 private:
  Match match(const Request& request) const noexcept;
  int pages_to_compute(const Request& request, const Match& match) const noexcept;
  bool fits(const Request& request, const Match& match) const noexcept;
  Reservation reserve(const Request& request, const Match& match);
  bool waits(Request& request) noexcept;
  bool starts_to_wait(Request& request, const Match& match) noexcept;

  bool is_known_not_to_fit(const Request& request) const noexcept {
    return misfit_arrival_ == request.arrival && misfit_releases_ == roster_.releases();
  }

  int page_size_;
  int max_wait_steps_;
  Resources& resources_;
  const Roster& roster_;
  Lifecycle& lifecycle_;
  Counters& counters_;
  // The request that did not fit, and the releases so far: it is not looked at again before the
  // next release.
  std::uint64_t misfit_arrival_ = 0;
  std::uint64_t misfit_releases_ = 0;
};

}  // namespace tokenspeed
