// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "cache/page_keys.h"
#include "cache/reservation.h"

using namespace tokenspeed;

namespace {
// One group, pages and blocks of one token.
struct Device {
  Layout layout;
  PagePool pages{8};
  PagePool host{0};
  KvEventLog events{false, 1};
  PrefixTree tree{layout, pages, host, events};
  SlotPool slots{2};
  PageHasher hasher{1};
  std::vector<TokenId> tokens{5, 6, 7};
  std::vector<PageKey> keys;

  explicit Device(CacheGroupConfig group = {"full", 1, 0}) : layout({std::move(group)}) {
    hasher.extend(0, tokens, keys);
  }
  Prefix prefix() const { return {0, tokens, keys}; }
  Reservation reserve(int num_pages) {
    Match match;
    tree.match(prefix(), 2, match);
    Reservation reservation(slots.take(), tree.pin(match, 4), layout, 4);
    for (int i = 0; i < num_pages; ++i) reservation.append(0, pages.take());
    return reservation;
  }
  void publish(Reservation& reservation) {
    CHECK(reservation.publish_next(tree, prefix().block(reservation.published(), 1)));
  }
  int evictable() const { return tree.page_count(Grip::FREE); }
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
    CHECK(reservation.size(0) == 3);
    const Reservation moved = std::move(reservation);
    CHECK(moved.slot().id() == 1);
    CHECK(device.evictable() == 0);
  }
  CHECK(device.slots.free() == 2);
  CHECK(device.pages.free() == 6);
  CHECK(device.evictable() == 2);  // the published pages stay
}

TEST_CASE("a second reservation starts behind the matched blocks") {
  Device device;
  Reservation first = device.reserve(3);
  device.publish(first);
  Reservation second = device.reserve(2);
  CHECK(second.matched() == 1);
  CHECK(second.size(0) == 3);
  CHECK(second.page_table(&device.tree, 0) == std::vector<PageId>{1, 4, 5});
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
  CHECK(second.page_table(&device.tree, 0) == std::vector<PageId>{4, 5, 6});  // as it was told
  {
    const Reservation gone = std::move(first);
  }
  CHECK(device.pages.free() == 4);  // two private ones; the published one is pinned by second
  CHECK(second.fold_twins(device.tree));
  CHECK(device.pages.free() == 5);
  CHECK(second.page_table(&device.tree, 0) == std::vector<PageId>{4, 5, 6});
  CHECK(!second.fold_twins(device.tree));
}

TEST_CASE("what a window has passed is given back: own pages at once, published ones to the tree") {
  Device device({"sliding", 1, 2});
  Reservation reservation = device.reserve(3);
  device.publish(reservation);
  CHECK(!reservation.reclaim(1));  // token 0 is in the window of token 1
  CHECK(device.evictable() == 0);
  CHECK(!reservation.reclaim(2));  // its page is the tree's: not pinned any more
  CHECK(device.evictable() == 1);
  CHECK(reservation.reclaim(3));  // of token 1, which nobody published
  CHECK(device.pages.free() == 6);
  CHECK(reservation.page_table(&device.tree, 0) == std::vector<PageId>{0, 0, 3});
}
