// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// expect: deleted

#include <utility>

#include "cache/slot_pool.h"

using namespace tokenspeed;

Slot second(Slot& slot) {
#ifdef BREAK
  return Slot(slot);
#else
  return Slot(std::move(slot));
#endif
}
