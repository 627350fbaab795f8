// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// expect: an outcome is to<S>, ignore or reject

#include "fsm/table.h"

using namespace tokenspeed::fsm;

struct Only {
  static constexpr std::string_view name = "Only";
};
struct Tick {
  static constexpr std::string_view name = "Tick";
};

#ifdef BREAK
using Tiny = Table<On<Tick>, From<Only, Only>>;
#else
using Tiny = Table<On<Tick>, From<Only, to<Only>>>;
#endif
static_assert(Tiny::rows.size() == 1);
