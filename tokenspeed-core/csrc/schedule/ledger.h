// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <string>

#include "schedule/resources.h"
#include "schedule/roster.h"

namespace tokenspeed {

struct Ledger {
  int total = 0;
  int free = 0;
  int cached = 0;
  int active = 0;
  int in_transfer = 0;
  bool balanced = false;
  std::string detail;  // names every term
};

// Walks every owner: the free list, the tree's nodes, the requests' holders.
Ledger take_ledger(const Resources& resources, const Roster& roster);

}  // namespace tokenspeed
