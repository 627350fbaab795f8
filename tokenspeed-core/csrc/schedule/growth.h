// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include "schedule/lifecycle.h"
#include "schedule/resources.h"
#include "schedule/roster.h"
#include "schedule/update_log.h"

namespace tokenspeed {

// One more page for a running request, at the price of others if need be.
class Growth {
 public:
  Growth(Resources& resources, const Roster& roster, Lifecycle& lifecycle, UpdateLog& updates)
      : resources_(resources), roster_(roster), lifecycle_(lifecycle), updates_(updates) {}

  // Empty: not in this step. The request may then have been retracted itself.
  Page take_page_for(Request& request);

 private:
  bool make_page_for(Request& request);

  Resources& resources_;
  const Roster& roster_;
  Lifecycle& lifecycle_;
  UpdateLog& updates_;
};

}  // namespace tokenspeed
