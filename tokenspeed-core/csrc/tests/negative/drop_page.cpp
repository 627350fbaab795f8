// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// expect: nodiscard

#include "cache/page_pool.h"

using namespace tokenspeed;

// A page that nobody holds is given back at once, which is never what was meant.
void take(PagePool& pool) {
#ifdef BREAK
#pragma GCC diagnostic error "-Wunused-result"
  pool.take();
#else
  const Page page = pool.take();
#endif
}
