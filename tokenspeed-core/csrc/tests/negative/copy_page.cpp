// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// expect: deleted

#include <utility>

#include "cache/page_pool.h"

using namespace tokenspeed;

// Two holders of one page would give it back twice.
Page second(Page& page) {
#ifdef BREAK
  return Page(page);
#else
  return Page(std::move(page));
#endif
}
