// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include "rig.h"

using namespace tokenspeed;
using namespace tokenspeed::test;

namespace {
// Brings request 1 (prompt 0..2, stop id 99) to decoding with `depth` steps in flight.
std::vector<Step> decode_with_in_flight(Rig& rig, int depth, std::int64_t deadline_ms = 0) {
  rig.submit(1, counting(0, 3), 20, {99}, deadline_ms);
  rig.run();
  rig.run();
  std::vector<Step> steps;
  for (int i = 0; i < depth; ++i) steps.push_back(rig.plan());
  return steps;
}
}  // namespace

TEST_CASE("a stop with nothing behind it in flight ends at once (depth 0)") {
  Rig rig;
  decode_with_in_flight(rig, 0);
  rig.run(99);
  CHECK(rig.heard(1).finish == Finish::STOP);
  CHECK(rig.heard(1).stop_token == 99);
  CHECK(rig.heard(1).tokens == Tokens{1000, 1000, 99});
  CHECK(rig.scheduler.ledger().active == 0);
  CHECK(!rig.scheduler.has_work());
}

TEST_CASE("a stop keeps its pages until the steps in flight are committed (depth 1 and 2)") {
  for (const int depth : {1, 2}) {
    CAPTURE(depth);
    Rig rig;
    const auto steps = decode_with_in_flight(rig, depth + 1);
    rig.commit(steps[0], 99);
    CHECK(rig.heard(1).finish == Finish::STOP);  // reported at once
    for (int i = 1; i <= depth; ++i) {
      CHECK(rig.scheduler.gauges().draining == 1);
      CHECK(rig.scheduler.ledger().active > 0);
      CHECK(rig.scheduler.has_work());
      rig.commit(steps[static_cast<std::size_t>(i)], 55);
    }
    CHECK(rig.heard(1).tokens == Tokens{1000, 1000, 99});  // no surplus token
    CHECK(rig.scheduler.ledger().active == 0);
    CHECK(!rig.scheduler.has_work());
    CHECK(rig.scheduler.counters().ignored_events == depth);
  }
}

TEST_CASE("a length limit is known: no row is planned past it") {
  for (const int depth : {1, 2}) {
    Rig rig;
    rig.submit(1, counting(0, 3), 3);
    std::vector<Step> steps;
    for (int i = 0; i < 3; ++i) steps.push_back(rig.plan());
    CHECK(rig.plan().rows.empty());
    for (const Step& step : steps) rig.commit(step);
    CHECK(rig.heard(1).finish == Finish::LENGTH);
    CHECK(rig.heard(1).tokens.size() == 3);
    CHECK(rig.scheduler.counters().ignored_events == 0);
    (void)depth;
  }
}

TEST_CASE("the id of a request that drains is free again, its late results hit nobody") {
  Rig rig;
  const auto steps = decode_with_in_flight(rig, 2);
  rig.commit(steps[0], 99);
  CHECK(rig.submit(1, counting(50, 3), 2).rejection == Rejection::ACCEPTED);
  const Step step = rig.plan();
  REQUIRE(step.row_of(1) != nullptr);
  CHECK(step.row_of(1)->slot != steps[1].rows[0].slot);
  rig.commit(steps[1], 55);
  CHECK(rig.heard(1).finish == Finish::STOP);
}

TEST_CASE("abort while waiting ends at once") {
  Rig rig;
  rig.submit(1, counting(0, 3));
  CHECK(rig.scheduler.abort(1));
  CHECK(!rig.scheduler.has_work());
  CHECK(rig.heard(1).finish == Finish::ABORTED);
  CHECK(!rig.scheduler.abort(1));
  CHECK(!rig.scheduler.abort(77));
  CHECK(rig.scheduler.counters().ignored_events == 2);
}

TEST_CASE("abort with nothing in flight gives the pages back at once") {
  Rig rig({.max_step_tokens = 4});
  rig.submit(1, counting(0, 10));
  rig.run();  // in prefill
  CHECK(rig.scheduler.abort(1));
  CHECK(rig.scheduler.ledger().active == 0);
  CHECK(!rig.scheduler.has_work());

  Rig decoding;
  decode_with_in_flight(decoding, 0);
  CHECK(decoding.scheduler.abort(1));
  CHECK(decoding.scheduler.ledger().active == 0);
}

TEST_CASE("abort in flight frees at the first commit after the last step in flight") {
  for (const int depth : {1, 2}) {
    Rig rig;
    const auto steps = decode_with_in_flight(rig, depth);
    CHECK(rig.scheduler.abort(1));
    CHECK(rig.heard(1).finish == Finish::ABORTED);
    CHECK(!rig.scheduler.abort(1));  // late
    CHECK(rig.plan().rows.empty());
    for (const Step& step : steps) {
      CHECK(rig.scheduler.ledger().active > 0);
      rig.commit(step, 99);
    }
    CHECK(rig.heard(1).tokens.size() == 2);
    CHECK(rig.scheduler.ledger().active == 0);
    CHECK(!rig.scheduler.has_work());
  }
}

TEST_CASE("abort of a prompt in flight") {
  Rig rig({.max_step_tokens = 4});
  rig.submit(1, counting(0, 10));
  const Step a = rig.plan();
  const Step b = rig.plan();
  CHECK(rig.scheduler.abort(1));
  rig.commit(a);
  CHECK(rig.scheduler.ledger().active > 0);
  rig.commit(b);
  CHECK(rig.scheduler.ledger().active == 0);
  CHECK(rig.scheduler.ledger().cached == 0);  // nothing of it was published
}

TEST_CASE("a deadline ends a waiting, a running and an in-flight request the same way") {
  Rig waiting({.max_seqs = 1});
  waiting.submit(1, counting(0, 3), 20);
  waiting.run();
  waiting.submit(2, counting(50, 3), 20, {}, 10);
  waiting.commit(waiting.plan(9));
  CHECK(waiting.heard(2).finish == Finish::NONE);
  waiting.commit(waiting.plan(10));
  CHECK(waiting.heard(2).finish == Finish::EXPIRED);
  CHECK(waiting.scheduler.gauges().waiting == 0);

  Rig running;
  decode_with_in_flight(running, 0, 10);
  CHECK(running.plan(10).rows.empty());
  CHECK(running.heard(1).finish == Finish::EXPIRED);
  CHECK(!running.scheduler.has_work());

  Rig in_flight;
  const auto steps = decode_with_in_flight(in_flight, 1, 10);
  CHECK(in_flight.plan(11).rows.empty());
  CHECK(in_flight.heard(1).finish == Finish::EXPIRED);
  CHECK(in_flight.scheduler.ledger().active > 0);
  in_flight.commit(steps[0]);
  CHECK(in_flight.scheduler.ledger().active == 0);
}

TEST_CASE("a deadline of a request that ended is nobody else's") {
  Rig rig;
  rig.submit(1, counting(0, 3), 1, {}, 10);
  rig.run();
  rig.submit(2, counting(0, 3), 5);  // takes over the recycled record
  rig.commit(rig.plan(20));
  CHECK(rig.heard(2).finish == Finish::NONE);
  CHECK(rig.scheduler.counters().ignored_events == 0);
}

TEST_CASE("a failed row ends its request alone, and its pages of that step stay unknown") {
  Rig rig({.page_size = 2, .num_pages = 32});
  rig.submit(1, counting(0, 5), 8);
  rig.submit(2, counting(100, 5), 8);
  const Step prompt = rig.plan();
  const Step decode = rig.plan();
  rig.commit(prompt, 1000, {{1, -2}});
  CHECK(rig.heard(1).finish == Finish::FAILED);
  CHECK(rig.scheduler.ledger().cached == 0);
  CHECK(rig.scheduler.gauges().draining == 1);
  rig.commit(decode, 1000, {{1, -2}});
  CHECK(rig.scheduler.gauges().draining == 0);
  rig.run_until_idle();
  CHECK(rig.heard(2).finish == Finish::LENGTH);
  CHECK(rig.heard(1).tokens.empty());
  rig.submit(3, counting(0, 5), 1);
  rig.run_until_idle();
  CHECK(rig.heard(3).cached_tokens == 0);
}
