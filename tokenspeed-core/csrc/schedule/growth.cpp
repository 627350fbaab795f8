// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/growth.h"

namespace tokenspeed {

Page Growth::take_page_for(Request& request) {
  Page page = resources_.take_page();
  while (!page && make_page_for(request)) {
    page = resources_.take_page();
  }
  return page;
}

// True: look again. In order: stop holding a page twice; wait for pages that come back at a
// commit which is already due; take them from the youngest request.
//
// Why this cannot deadlock: a victim is never older than the request in need, so the oldest one
// loses nothing and ends up alone at worst. Alone, it owns each page once (twins fold), every
// other page is free or evictable, and submit has checked that its longest table fits.
bool Growth::make_page_for(Request& request) {
  Reservation& reservation = *fsm::reservation_of(request.state);
  if (resources_.tree() != nullptr && reservation.fold_twins(*resources_.tree())) {
    return true;
  }
  if (roster_.leaving() > 0) {
    return false;
  }
  Request& victim = *roster_.running().back();
  if (&victim == &request && roster_.running().size() == 1) {
    // By the argument above this is a bug of ours. Failing one request beats hanging all.
    updates_.make_room(1);
    lifecycle_.end(request, fsm::Fail{});
    return false;
  }
  lifecycle_.retract(victim);
  return &victim != &request;
}

}  // namespace tokenspeed
