// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache/page_pool.h"
#include "cache/slot_pool.h"

using namespace tokenspeed;

static_assert(!std::is_copy_constructible_v<Page> && !std::is_copy_assignable_v<Page>);
static_assert(!std::is_copy_constructible_v<Slot> && !std::is_copy_assignable_v<Slot>);
static_assert(std::is_nothrow_move_constructible_v<Page>);
static_assert(std::is_nothrow_move_assignable_v<Page>);

TEST_CASE("pages come out in order and go back when their holder ends") {
  PagePool pool(3);
  {
    const Page first = pool.take();
    const Page second = pool.take();
    CHECK(first.id() == 1);
    CHECK(second.id() == 2);
    CHECK(pool.free() == 1);
  }
  CHECK(pool.free() == 3);
  CHECK(pool.take().id() == 1);
}

TEST_CASE("an empty pool gives an empty page") {
  PagePool pool(1);
  const Page only = pool.take();
  const Page none = pool.take();
  CHECK(only);
  CHECK(!none);
  CHECK(none.id() == kNullPage);
}

TEST_CASE("moving a page moves the right to it") {
  PagePool pool(2);
  Page a = pool.take();
  Page b = std::move(a);
  CHECK(!a);
  CHECK(a.id() == kNullPage);
  CHECK(b.id() == 1);
  CHECK(pool.free() == 1);
  Page c = pool.take();
  c = std::move(b);  // gives page 2 back
  CHECK(c.id() == 1);
  CHECK(pool.free() == 1);
  CHECK(pool.take().id() == 2);
}

TEST_CASE("moving a page onto itself keeps it") {
  PagePool pool(2);
  Page page = pool.take();
  Page& same = page;
  page = std::move(same);
  CHECK(page.id() == 1);
  CHECK(pool.free() == 1);
}

TEST_CASE("an exception on the way gives pages back") {
  PagePool pool(4);
  const auto take_three_and_throw = [&] {
    std::vector<Page> pages;
    for (int i = 0; i < 3; ++i) pages.push_back(pool.take());
    throw std::runtime_error("no room");
  };
  CHECK_THROWS(take_three_and_throw());
  CHECK(pool.free() == 4);
}

TEST_CASE("a slot's epoch counts its tenants") {
  SlotPool pool(2);
  Slot first = pool.take();
  CHECK(first.id() == 1);
  CHECK(first.epoch() == 1);
  first.reset();
  Slot again = pool.take();
  CHECK(again.id() == 1);
  CHECK(again.epoch() == 2);
  Slot other = pool.take();
  CHECK(other.id() == 2);
  CHECK(other.epoch() == 1);
  CHECK(!pool.take());
  other = std::move(again);  // gives slot 2 back
  CHECK(other.id() == 1);
  CHECK(pool.free() == 1);
  Slot& same = other;
  other = std::move(same);
  CHECK(other.id() == 1);
}
