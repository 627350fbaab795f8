// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/growth.h"

namespace tokenspeed {

Page Growth::take_page_for(Request& request, MoveSink& sink) {
  Page page = cache_.take_page();
  while (!page && make_page_for(request, sink)) {
    page = cache_.take_page();
  }
  return page;
}

// True: look again. In order: stop holding a page twice; wait for pages that come back at a
// commit or an ack which is already due; take them from the running request whose turn came last.
//
// Why this cannot deadlock: a victim's turn is never before that of the request in need, so the
// first one loses nothing and ends up alone at worst. Alone, with nothing in flight, it owns each
// page once (twins fold), every other page is free or evictable, and submit has checked that the
// most it can hold fits.
bool Growth::make_page_for(Request& request, MoveSink& sink) {
  Reservation& reservation = *fsm::reservation_of(request.state);
  if (cache_.tree() != nullptr && reservation.fold_twins(*cache_.tree())) {
    return true;
  }
  if (roster_.leaving() > 0 || transfers_.holds_pages()) {
    return false;
  }
  Request& victim = *roster_.running().back();
  if (&victim == &request && roster_.running().size() == 1) {
    if (request.in_flight > 0 || transfers_.in_flight() > 0) {
      return false;
    }
    // By the argument above this is a bug of ours. Failing one request beats hanging all.
    updates_.make_room(1);
    lifecycle_.end(request, fsm::Fail{});
    return false;
  }
  lifecycle_.retract(victim);
  transfers_.store_retired(sink);
  return &victim != &request;
}

}  // namespace tokenspeed
