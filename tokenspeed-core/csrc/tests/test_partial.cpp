// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include "rig.h"

using namespace tokenspeed;
using namespace tokenspeed::test;

namespace {

using Copies = std::vector<std::pair<PageId, PageId>>;

// A prompt of `count` tokens that ran and ended: its pages are 1, 2, ... of four tokens each.
void leave_behind(Rig& rig, int count) {
  rig.submit(100, counting(0, count), 1);
  rig.run_until_idle();
  REQUIRE(rig.scheduler.ledger().cached == ceil_div(count, 4));
}

std::vector<PageId> pages_of(const Step& step) {
  std::vector<PageId> pages;
  for (const Delta& delta : step.deltas) pages.push_back(delta.page);
  return pages;
}

}  // namespace

TEST_CASE("a hit ends inside a page, at the last token but one at most") {
  Rig rig;
  leave_behind(rig, 12);
  rig.submit(1, counting(0, 12), 3);
  const Step step = rig.plan();
  CHECK(step.copies == Copies{{3, 4}});
  CHECK(pages_of(step) == std::vector<PageId>{1, 2, 4});
  REQUIRE(step.rows.size() == 1);
  CHECK(step.rows[0].count == 1);
  CHECK(step.rows[0].kv_len == 12);
  rig.commit(step);
  CHECK(rig.heard(1).cached_tokens == 11);
  CHECK(rig.scheduler.counters().page_copies == 1);
}

TEST_CASE("a fork inside a page copies the tokens that both have") {
  Rig rig;
  leave_behind(rig, 12);
  rig.submit(1, counting(0, 10) + Tokens{90, 91}, 1);
  const Step step = rig.plan();
  CHECK(step.copies == Copies{{3, 4}});
  CHECK(step.rows[0].tokens == Tokens{90, 91});
  rig.commit(step);
  CHECK(rig.heard(1).cached_tokens == 10);
}

TEST_CASE("a fork inside the first page is a hit too") {
  Rig rig;
  leave_behind(rig, 12);
  rig.submit(1, counting(0, 3) + Tokens{90, 91}, 1);
  const Step step = rig.plan();
  CHECK(step.copies == Copies{{1, 4}});
  CHECK(pages_of(step) == std::vector<PageId>{4, 5});
  rig.commit(step);
  CHECK(rig.heard(1).cached_tokens == 3);
}

TEST_CASE("the source stays pinned until the commit of the row that copies it") {
  Rig rig({.max_step_tokens = 4});
  rig.submit(100, counting(0, 12), 1);
  rig.run_until_idle();
  rig.submit(1, counting(0, 10) + counting(90, 8), 2);
  const Step first = rig.plan();
  CHECK(first.copies == Copies{{3, 4}});
  const Step second = rig.plan();
  CHECK(second.copies.empty());
  CHECK(rig.scheduler.ledger().active == 6);  // pages 1, 2; the source 3; 4, 5, 6 of its own
  CHECK(rig.scheduler.ledger().cached == 0);
  rig.commit(first);
  CHECK(rig.scheduler.ledger().active == 5);
  CHECK(rig.scheduler.ledger().cached == 1);
  rig.commit(second);
}

TEST_CASE("nobody gets the page of a source while it is pinned") {
  Rig rig({.num_pages = 4});
  leave_behind(rig, 12);
  rig.submit(1, counting(0, 10) + Tokens{90, 91}, 1);
  const Step copying = rig.plan();
  REQUIRE(copying.copies == Copies{{3, 4}});
  rig.submit(2, counting(500, 4), 1);
  CHECK(rig.plan().row_of(2) == nullptr);
  CHECK(rig.scheduler.counters().evictions == 0);
  rig.commit(copying);
  CHECK(rig.run().row_of(2) != nullptr);
}

TEST_CASE("a leaf tail without another owner is adopted, not copied") {
  Rig rig;
  leave_behind(rig, 6);
  rig.submit(1, counting(0, 6) + Tokens{90, 91}, 1);
  const Step step = rig.plan();
  CHECK(step.copies.empty());
  CHECK(pages_of(step) == std::vector<PageId>{1, 2});
  CHECK(step.rows[0].tokens == Tokens{90, 91});
  CHECK(rig.scheduler.gauges().free_pages == 14);
  CHECK(rig.scheduler.counters().adoptions == 1);
  rig.commit(step);
  CHECK(rig.heard(1).cached_tokens == 6);
  CHECK(rig.scheduler.counters().page_copies == 0);
}

TEST_CASE("a tail of which not all tokens match is copied: the rest stays of use") {
  Rig rig;
  leave_behind(rig, 7);
  rig.submit(1, counting(0, 6) + Tokens{90, 91}, 1);
  CHECK(rig.run().copies == Copies{{2, 3}});
  rig.submit(2, counting(0, 7) + Tokens{80}, 1);
  rig.run();
  CHECK(rig.heard(2).cached_tokens == 7);
}

TEST_CASE("a tail with another owner is copied") {
  Rig rig;
  leave_behind(rig, 7);
  rig.submit(1, counting(0, 6) + Tokens{90, 91}, 1);
  rig.submit(2, counting(0, 7) + Tokens{50, 51}, 1);
  const Step step = rig.plan();
  CHECK(step.copies == Copies{{2, 3}, {2, 4}});
  CHECK(rig.scheduler.counters().adoptions == 0);
  rig.commit(step);
  CHECK(rig.heard(1).cached_tokens == 6);
  CHECK(rig.heard(2).cached_tokens == 7);
  // Now nobody holds it, and of two that match equally far it costs no copy and no page.
  rig.submit(3, counting(0, 7) + Tokens{60, 61}, 1);
  CHECK(rig.run().copies.empty());
  CHECK(rig.scheduler.counters().adoptions == 1);
}

TEST_CASE("a tail is not kept beside an equal or longer one") {
  Rig rig;
  leave_behind(rig, 7);
  rig.submit(1, counting(0, 6), 1);
  rig.run_until_idle();
  CHECK(rig.scheduler.ledger().cached == 2);
  CHECK(rig.scheduler.ledger().free == 14);
}

TEST_CASE("what an aborted or expired request had committed is a tail, a failed one's is not") {
  enum class End { ABORT, EXPIRE, FAIL };
  for (const End end : {End::ABORT, End::EXPIRE, End::FAIL}) {
    CAPTURE(static_cast<int>(end));
    Rig rig({.max_step_tokens = 6});
    rig.submit(1, counting(0, 10), 1, {}, end == End::EXPIRE ? 5 : 0);
    rig.run();  // 6 tokens
    const Step in_flight = rig.plan();
    if (end == End::ABORT) CHECK(rig.scheduler.abort(1));
    if (end == End::EXPIRE) rig.plan(5);
    rig.commit(in_flight, end == End::FAIL ? -2 : 1000);
    CHECK(!rig.scheduler.has_work());
    CHECK(rig.scheduler.ledger().cached == (end == End::FAIL ? 1 : 2));
    rig.submit(2, counting(0, 10), 1);
    rig.run_until_idle();
    CHECK(rig.heard(2).cached_tokens == (end == End::FAIL ? 4 : 6));
  }
}

TEST_CASE("with recurrent state a hit ends at the end of a block") {
  Rig rig({.groups = {{"full", 4, 0}, {"state", 4, 0}}});
  rig.submit(1, counting(0, 10), 1);
  rig.run_until_idle();
  rig.submit(2, counting(0, 10), 1);
  rig.run_until_idle();
  CHECK(rig.heard(2).cached_tokens == 8);
  CHECK(rig.scheduler.counters().adoptions == 0);
}

TEST_CASE("namespaces share neither blocks nor parts of them nor tails") {
  Rig rig;
  leave_behind(rig, 10);
  rig.submit(1, counting(0, 10), 1, {}, 0, 7);
  rig.submit(2, counting(0, 3), 1, {}, 0, 7);
  rig.submit(3, counting(0, 3), 1, {}, 0, 8);
  rig.run_until_idle();
  CHECK(rig.heard(1).cached_tokens == 0);
  CHECK(rig.heard(3).cached_tokens == 0);
  CHECK(rig.heard(2).cached_tokens == 0);  // came with 1
  rig.submit(4, counting(0, 10), 1, {}, 0, 7);
  rig.run_until_idle();
  CHECK(rig.heard(4).cached_tokens == 9);
}

TEST_CASE("a partial hit comes with the right pages however the keys collide") {
  Rig rig({.hash_bits = 1});
  leave_behind(rig, 12);
  rig.submit(1, counting(0, 6) + counting(90, 6), 1);
  const Step step = rig.run();
  CHECK(step.copies == Copies{{2, 4}});
  CHECK(rig.heard(1).cached_tokens == 6);
}
