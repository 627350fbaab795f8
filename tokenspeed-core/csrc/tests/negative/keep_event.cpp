// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// expect: events are consumed

#include <utility>

#include "fsm/machine.h"

using namespace tokenspeed::fsm;

OutcomeKind send(tokenspeed::Request& request, Abort& event, Effects& effects) {
#ifdef BREAK
  return step(request, event, effects);
#else
  return step(request, std::move(event), effects);
#endif
}
