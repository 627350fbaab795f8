// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <string>

#include "cache/kv_cache.h"
#include "cache/transfers.h"
#include "schedule/roster.h"

namespace tokenspeed {

struct Ledger {
  int total = 0;
  int free = 0;
  int cached = 0;
  int active = 0;
  int in_transfer = 0;
  int host_total = 0;
  int host_free = 0;
  int host_cached = 0;
  int host_in_transfer = 0;
  bool balanced = false;
  std::string detail;  // names every term
};

// Walks every owner: the free lists, the tree's nodes, the requests' and the transfers' holders.
Ledger take_ledger(const KvCache& cache, const Transfers& transfers, const Roster& roster);

}  // namespace tokenspeed
