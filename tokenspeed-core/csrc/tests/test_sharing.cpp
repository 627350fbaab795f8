// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include "rig.h"

using namespace tokenspeed;
using namespace tokenspeed::test;

TEST_CASE("a second equal prompt computes only what it must") {
  for (const int hash_bits : {64, 1}) {
    Rig rig({.hash_bits = hash_bits});
    rig.submit(1, counting(0, 12), 1);
    rig.run_until_idle();
    CHECK(rig.scheduler.ledger().cached == 3);
    rig.submit(2, counting(0, 12), 1);
    const Step step = rig.run();
    CHECK(step.rows[0].count == 1);  // its last token is needed for the logits
    CHECK(step.rows[0].kv_len == 12);
    CHECK(step.deltas.size() == 3);
    CHECK(rig.heard(2).cached_tokens == 11);
    rig.submit(3, counting(0, 13), 1);
    CHECK(rig.run().rows[0].count == 1);
    CHECK(rig.heard(3).cached_tokens == 12);
    rig.submit(4, counting(0, 13), 1, {}, 0, 5);  // another namespace
    rig.run();
    CHECK(rig.heard(4).cached_tokens == 0);
  }
}

TEST_CASE("without a prefix cache nothing is kept or shared") {
  Rig rig({.prefix_cache = false});
  rig.submit(1, counting(0, 12), 6);
  rig.submit(2, counting(0, 12), 6);
  rig.run_until_idle();
  CHECK(rig.heard(2).cached_tokens == 0);
  CHECK(rig.scheduler.ledger().cached == 0);
  CHECK(rig.scheduler.reset_prefix_cache());
}

TEST_CASE("pages are published at the commit that fills them") {
  Rig rig({.max_step_tokens = 6});
  rig.submit(1, counting(0, 9), 8);
  const Step a = rig.plan();
  const Step b = rig.plan();
  rig.submit(2, counting(0, 6), 1);
  CHECK(rig.scheduler.counters().cached_tokens == 0);
  rig.commit(a);  // tokens 0..5: one full page
  const Step c = rig.plan();
  REQUIRE(c.row_of(2) != nullptr);
  CHECK(c.row_of(2)->count == 2);
  CHECK(c.row_of(1)->kv_len == 10);
  rig.commit(b, 1000);
  rig.commit(c, 1001);
  for (int i = 0; i < 3; ++i) rig.run(1002);
  // The running parent's answer is known too: 9 prompt tokens and the first three of the answer.
  Tokens fork = counting(0, 9);
  fork.insert(fork.end(), {1000, 1001, 1002, 7});
  rig.submit(3, fork, 1);
  const Step d = rig.run();
  REQUIRE(d.row_of(3) != nullptr);
  CHECK(d.row_of(3)->count == 1);
}

TEST_CASE("a request waits for pages that another computes, and gets every full one") {
  for (const int step_tokens : {6, 20, 64}) {
    for (const int depth : {0, 1, 2}) {
      CAPTURE(step_tokens);
      CAPTURE(depth);
      Rig rig({.num_pages = 40, .max_step_tokens = step_tokens});
      rig.submit(1, counting(0, 30), 4);
      std::vector<Step> in_flight{rig.plan()};
      rig.submit(2, counting(0, 30), 4);
      while (in_flight.back().row_of(2) == nullptr) {
        if (static_cast<int>(in_flight.size()) > depth) {
          rig.commit(in_flight.front());
          in_flight.erase(in_flight.begin());
        }
        in_flight.push_back(rig.plan());
      }
      CHECK(in_flight.back().row_of(2)->count == 2);  // 28 of 30 tokens from the first
      for (const Step& step : in_flight) rig.commit(step);
      rig.run_until_idle();
      CHECK(rig.heard(2).cached_tokens == 28);
      CHECK(rig.heard(2).finish == Finish::LENGTH);
    }
  }
}

TEST_CASE("two equal prompts submitted together share too; others may pass the one that waits") {
  Rig rig({.num_pages = 40, .max_step_tokens = 20});
  rig.submit(1, counting(0, 12), 1);
  rig.submit(2, counting(0, 12), 1);
  rig.submit(3, counting(500, 3), 1);
  const Step step = rig.run();
  CHECK(step.row_of(1) != nullptr);
  CHECK(step.row_of(2) == nullptr);
  CHECK(step.row_of(3) != nullptr);
  CHECK(rig.scheduler.counters().prefix_waits == 1);
  CHECK(rig.run().row_of(2)->count == 1);
  CHECK(rig.heard(2).cached_tokens == 11);
}

TEST_CASE("nobody waits for a page that only looks the same") {
  Rig rig({.num_pages = 40, .max_step_tokens = 32, .hash_bits = 1});  // keys are 0 or 1
  for (RequestId id = 1; id <= 4; ++id) {
    rig.submit(id, counting(static_cast<int>(id) * 100, 5), 1);
  }
  CHECK(rig.run().rows.size() == 4);
  CHECK(rig.scheduler.counters().prefix_waits == 0);
}

TEST_CASE("whoever waits for a page goes on when its provider ends") {
  Rig rig({.num_pages = 40, .max_step_tokens = 4});
  rig.submit(1, counting(0, 20), 1);
  rig.run();
  rig.submit(2, counting(0, 20), 1);
  CHECK(rig.run().row_of(2) == nullptr);
  CHECK(rig.scheduler.abort(1));
  const Step step = rig.run();
  REQUIRE(step.row_of(2) != nullptr);
  CHECK(step.row_of(2)->kv_len == 12);  // two pages had come
  rig.run_until_idle();
  CHECK(rig.heard(2).finish == Finish::LENGTH);
}

TEST_CASE("whoever waits for a page goes on when its provider fails") {
  Rig rig({.num_pages = 40, .max_step_tokens = 4});
  rig.submit(1, counting(0, 20), 1);
  rig.submit(2, counting(0, 20), 1);
  rig.run();
  const Step step = rig.plan();
  rig.commit(step, 1000, {{1, -2}});
  CHECK(rig.run().row_of(2) != nullptr);
}

TEST_CASE("waiting without progress ends after max_wait_steps plans") {
  Rig rig({.num_pages = 40, .max_step_tokens = 4, .max_wait_steps = 3});
  rig.submit(1, counting(0, 8), 1);
  const Step stuck = rig.plan();  // never committed here: no progress
  rig.plan();                     // the last chunk
  rig.submit(2, counting(0, 8), 1);
  int plans = 0;
  while (rig.plan().row_of(2) == nullptr) {
    REQUIRE(++plans < 10);
  }
  CHECK(plans == 3);
  (void)stuck;
}

TEST_CASE("zero wait steps: nobody waits") {
  Rig rig({.num_pages = 40, .max_wait_steps = 0});
  rig.submit(1, counting(0, 8), 1);
  rig.submit(2, counting(0, 8), 1);
  CHECK(rig.run().rows.size() == 2);
  CHECK(rig.scheduler.counters().prefix_waits == 0);
  rig.run_until_idle();
  CHECK(rig.scheduler.ledger().cached == 2);  // equal pages are kept once
}

TEST_CASE("the cache is dropped on request, when nobody is alive") {
  Rig rig;
  rig.submit(1, counting(0, 12), 2);
  const Step step = rig.plan();
  CHECK(!rig.scheduler.reset_prefix_cache());
  rig.commit(step);
  rig.run_until_idle();
  CHECK(rig.scheduler.ledger().cached == 4);  // with the unfinished page
  CHECK(rig.scheduler.reset_prefix_cache());
  CHECK(rig.scheduler.ledger().cached == 0);
  CHECK(rig.scheduler.ledger().free == 16);
}

TEST_CASE("a plan that admits many looks at a waiting request once") {
  Rig rig({.num_pages = 60, .max_seqs = 8, .max_step_tokens = 16, .max_wait_steps = 3});
  rig.submit(1, counting(0, 40), 1);
  rig.submit(2, counting(0, 40), 1);  // waits for the first
  for (RequestId id = 3; id < 9; ++id) {
    rig.submit(id, counting(static_cast<int>(id) * 100, 1), 1);
  }
  rig.run();
  CHECK(rig.run().row_of(2) == nullptr);  // six were admitted meanwhile, and it still waits
  rig.run_until_idle();
  CHECK(rig.heard(2).cached_tokens == 39);
}

// Else everybody behind it would wait as well, however long the other's prompt is.
TEST_CASE("one that waits for another's blocks holds up no later class") {
  Rig rig({.num_pages = 60, .max_step_tokens = 16, .aging_ms = 0});
  rig.submit(1, counting(0, 40), 1);
  rig.submit(2, counting(0, 40), 1);
  rig.run();
  rig.scheduler.submit({3, counting(500, 2), 1, {}, 0, 0, 0, 0, 5});
  Step step;
  for (int i = 0; i < 3 && step.row_of(3) == nullptr; ++i) step = rig.run();
  REQUIRE(step.row_of(3) != nullptr);
  CHECK(step.row_of(2) == nullptr);
}
