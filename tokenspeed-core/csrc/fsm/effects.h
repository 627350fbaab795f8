// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include "cache/page_keys.h"
#include "cache/prefix_tree.h"
#include "schedule/counters.h"
#include "schedule/update_log.h"

namespace tokenspeed::fsm {

// What an action may touch besides its request.
struct Effects {
  int page_size;
  const PageHasher& hasher;
  PrefixTree* tree;  // null: no prefix cache
  UpdateLog& updates;
  Counters& counters;
};

}  // namespace tokenspeed::fsm
