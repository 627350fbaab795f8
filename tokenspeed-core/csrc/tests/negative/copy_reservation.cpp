// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// expect: deleted

#include <utility>

#include "cache/reservation.h"

using namespace tokenspeed;

Reservation second(Reservation& reservation) {
#ifdef BREAK
  return Reservation(reservation);
#else
  return Reservation(std::move(reservation));
#endif
}
