// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include "cache/kv_cache.h"
#include "cache/transfers.h"
#include "schedule/lifecycle.h"
#include "schedule/roster.h"
#include "schedule/update_log.h"

namespace tokenspeed {

// One more page for a running request, at the price of others if need be.
class Growth {
 public:
  Growth(KvCache& cache, Transfers& transfers, const Roster& roster, Lifecycle& lifecycle,
         UpdateLog& updates)
      : cache_(cache),
        transfers_(transfers),
        roster_(roster),
        lifecycle_(lifecycle),
        updates_(updates) {}

  // Empty: not in this step. The request may then have been retracted itself. `sink`: where a
  // victim's way to the host tier begins.
  Page take_page_for(Request& request, MoveSink& sink);

 private:
  bool make_page_for(Request& request, MoveSink& sink);

  KvCache& cache_;
  Transfers& transfers_;
  const Roster& roster_;
  Lifecycle& lifecycle_;
  UpdateLog& updates_;
};

}  // namespace tokenspeed
