// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// expect: deleted

#include <utility>

#include "fsm/events.h"

using namespace tokenspeed::fsm;

// An admission carries the reservation: it happens once.
Admit second(Admit& admit) {
#ifdef BREAK
  return Admit(admit);
#else
  return Admit(std::move(admit));
#endif
}
