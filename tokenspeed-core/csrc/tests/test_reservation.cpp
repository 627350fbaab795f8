// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include "cache/page_keys.h"
#include "cache/reservation.h"

using namespace tokenspeed;

namespace {
struct Device {
  PagePool pages{8};
  PrefixTree tree{pages, 1};
  SlotPool slots{2};
  PageHasher hasher{1};
  std::vector<TokenId> tokens{5, 6, 7};
  std::vector<PageKey> keys;

  Device() { hasher.extend(0, tokens, keys); }
  Prefix prefix() const { return {0, tokens, keys}; }
  Reservation reserve(int num_pages) {
    Reservation reservation(slots.take(), tree.pin(tree.match(prefix(), 2)), 4);
    for (int i = 0; i < num_pages; ++i) reservation.append(pages.take());
    return reservation;
  }
  void publish(Reservation& reservation) {
    reservation.publish_next(tree, prefix().page(reservation.published(), 1));
  }
};
}  // namespace

static_assert(!std::is_copy_constructible_v<Reservation>);

TEST_CASE("the end of a reservation gives everything back") {
  Device device;
  {
    Reservation reservation = device.reserve(3);
    CHECK(device.pages.free() == 5);
    CHECK(device.slots.free() == 1);
    device.publish(reservation);
    device.publish(reservation);
    CHECK(reservation.published() == 2);
    CHECK(reservation.size() == 3);
    const Reservation moved = std::move(reservation);
    CHECK(moved.slot().id() == 1);
    CHECK(device.tree.evictable() == 0);
  }
  CHECK(device.slots.free() == 2);
  CHECK(device.pages.free() == 6);
  CHECK(device.tree.evictable() == 2);  // the published pages stay
}

TEST_CASE("a second reservation starts behind the matched pages") {
  Device device;
  Reservation first = device.reserve(3);
  device.publish(first);
  Reservation second = device.reserve(2);
  CHECK(second.matched() == 1);
  CHECK(second.size() == 3);
  CHECK(device.pages.free() == 3);
}

TEST_CASE("twins are kept while others read the tree's page, then fold") {
  Device device;
  Reservation first = device.reserve(3);
  Reservation second = device.reserve(3);
  device.publish(first);
  device.publish(second);
  CHECK(device.pages.free() == 2);
  CHECK(!second.fold_twins(device.tree));
  {
    const Reservation gone = std::move(first);
  }
  CHECK(device.pages.free() == 4);  // two private ones; the published one is pinned by second
  CHECK(second.fold_twins(device.tree));
  CHECK(device.pages.free() == 5);
  CHECK(!second.fold_twins(device.tree));
}
