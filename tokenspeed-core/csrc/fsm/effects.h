// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include "cache/page_keys.h"
#include "cache/kv_cache.h"
#include "cache/transfers.h"
#include "counters.h"
#include "schedule/update_log.h"

namespace tokenspeed::fsm {

// What an action may touch besides its request.
struct Effects {
  const PageHasher& hasher;
  KvCache& cache;
  Transfers& transfers;
  UpdateLog& updates;
  Counters& counters;
};

}  // namespace tokenspeed::fsm
