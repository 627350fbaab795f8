// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// expect: deleted

#include <utility>

#include "fsm/states.h"

using namespace tokenspeed::fsm;

State second(State& state) {
#ifdef BREAK
  return State(state);
#else
  return State(std::move(state));
#endif
}
