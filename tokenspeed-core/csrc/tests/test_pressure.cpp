// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include "rig.h"

using namespace tokenspeed;
using namespace tokenspeed::test;

TEST_CASE("what can never fit is refused at submit, with the numbers") {
  Rig rig({.page_size = 4, .num_pages = 5}, 100);
  // 20 positions: the 21st token is sampled but its KV is never written.
  CHECK(rig.submit(1, counting(0, 17), 4).rejection == Rejection::ACCEPTED);
  const SubmitResult refused = rig.submit(2, counting(0, 18), 4);
  CHECK(refused.rejection == Rejection::NEVER_FITS);
  CHECK(refused.needed == 6);
  CHECK(refused.available == 5);
  const SubmitResult too_long = rig.submit(3, counting(0, 99), 2);
  CHECK(too_long.rejection == Rejection::TOO_LONG);
  CHECK(too_long.needed == 101);
  CHECK(too_long.available == 100);
  CHECK(rig.submit(1, counting(0, 3)).rejection == Rejection::DUPLICATE_ID);
  CHECK(rig.submit(4, {}).rejection == Rejection::EMPTY_PROMPT);
  CHECK_THROWS(rig.submit(5, counting(0, 3), 0));
  CHECK_THROWS(rig.submit(5, {-1}));
  CHECK(rig.scheduler.gauges().waiting == 1);
  rig.run_until_idle();  // exactly fits
  CHECK(rig.heard(1).finish == Finish::LENGTH);
}

TEST_CASE("the first that does not fit keeps those behind it out, until pages are released") {
  Rig rig({.page_size = 4, .num_pages = 6, .max_bypass = 0});
  rig.submit(1, counting(0, 12), 4);
  rig.run();
  rig.submit(2, counting(100, 16), 4);
  rig.submit(3, counting(200, 3), 1);
  CHECK(rig.run().rows.size() == 1);
  CHECK(rig.scheduler.gauges().waiting == 2);
  CHECK(rig.scheduler.gauges().waiting_tokens == 19);
  rig.run();
  rig.run();
  CHECK(rig.heard(1).finish == Finish::LENGTH);
  CHECK(rig.run().row_of(2) != nullptr);
  rig.run_until_idle();
  CHECK(rig.heard(3).finish == Finish::LENGTH);
}

TEST_CASE("one page per running request stays in reserve at an admission") {
  Rig rig({.page_size = 4, .num_pages = 6});
  rig.submit(1, counting(0, 12), 12);
  rig.run();
  rig.submit(2, counting(100, 12), 4);  // needs 3 of the 3 that are free
  CHECK(rig.run().row_of(2) == nullptr);
  rig.submit(3, counting(200, 8), 4);
  CHECK(rig.run().row_of(3) == nullptr);  // behind 2
  CHECK(rig.scheduler.abort(2));
  CHECK(rig.run().row_of(3) == nullptr);  // 1 has taken another page meanwhile: 2 of 2 are free
  CHECK(rig.scheduler.abort(1));
  CHECK(rig.run().row_of(3) != nullptr);
}

TEST_CASE("a request that does not fit leaves when it is aborted, and the next comes in") {
  Rig rig({.page_size = 4, .num_pages = 6, .max_bypass = 0});
  rig.submit(1, counting(0, 12), 12);
  rig.run();
  rig.submit(2, counting(100, 16), 4);
  rig.submit(3, counting(200, 3), 1);
  rig.run();
  CHECK(rig.scheduler.abort(2));
  CHECK(rig.run().row_of(3) != nullptr);
}

TEST_CASE("matched pages cannot also be evicted for the same request") {
  // 4 pages cached; the new prompt matches 3 of them and needs 2 more: 1 free + 1 evictable.
  Rig rig({.page_size = 4, .num_pages = 5});
  rig.submit(1, counting(0, 16), 1);
  rig.run_until_idle();
  REQUIRE(rig.scheduler.ledger().cached == 4);
  Tokens prompt = counting(0, 12);
  prompt.insert(prompt.end(), {500, 501, 502, 503, 504});
  rig.submit(2, prompt, 1);
  const Step step = rig.run();
  CHECK(step.rows[0].count == 5);
  CHECK(rig.heard(2).cached_tokens == 12);
  CHECK(rig.scheduler.counters().evictions == 1);
}

TEST_CASE("the youngest is retracted, and goes on with every token it had") {
  Rig rig({.page_size = 2, .num_pages = 8, .prefix_cache = false});
  rig.submit(1, counting(0, 4), 10);
  rig.submit(2, counting(100, 4), 8);
  for (int i = 0; rig.scheduler.counters().retractions == 0; ++i) {
    REQUIRE(i < 20);
    rig.run(static_cast<TokenId>(1000 + i));
  }
  CHECK(rig.scheduler.gauges().running == 1);
  CHECK(rig.scheduler.gauges().waiting == 1);
  const Tokens before = rig.heard(2).tokens;
  CHECK(!before.empty());
  Step step;
  while (step.row_of(2) == nullptr) step = rig.run(2000);
  CHECK(rig.heard(1).finish == Finish::LENGTH);
  // It computes prompt and answer so far as one prompt, under a new epoch.
  Tokens prompt = counting(100, 4);
  prompt.insert(prompt.end(), before.begin(), before.end());
  CHECK(step.row_of(2)->tokens == prompt);
  CHECK((step.row_of(2)->flags & NEW_TENANT) != 0);
  rig.run_until_idle();
  CHECK(rig.heard(2).tokens.size() == 8);
  CHECK(rig.heard(2).finish == Finish::LENGTH);
}

TEST_CASE("a victim in flight keeps its pages and the token of that step") {
  for (const int depth : {1, 2}) {
    CAPTURE(depth);
    Rig rig({.page_size = 2, .num_pages = 8, .prefix_cache = false});
    rig.submit(1, counting(0, 4), 10);
    rig.submit(2, counting(100, 4), 8);
    std::vector<Step> in_flight;
    while (rig.scheduler.counters().retractions == 0) {
      in_flight.push_back(rig.plan());
      if (static_cast<int>(in_flight.size()) > depth) {
        if (rig.scheduler.counters().retractions == 0) {
          rig.commit(in_flight.front());
          in_flight.erase(in_flight.begin());
        }
      }
    }
    CHECK(rig.scheduler.gauges().draining == 1);
    std::size_t tokens = rig.heard(2).tokens.size();
    for (const Step& step : in_flight) {
      tokens += step.row_of(2) != nullptr ? 1 : 0;
      rig.commit(step);
    }
    CHECK(rig.heard(2).tokens.size() == tokens);  // the tokens in flight were kept
    CHECK(rig.scheduler.gauges().waiting == 1);
    rig.run_until_idle();
    CHECK(rig.heard(1).tokens.size() == 10);
    CHECK(rig.heard(2).tokens.size() == 8);
  }
}

TEST_CASE("a victim that stops in flight ends; it does not wait again") {
  Rig rig({.page_size = 2, .num_pages = 8, .prefix_cache = false});
  rig.submit(1, counting(0, 4), 10, {99});
  rig.submit(2, counting(100, 4), 8, {99});
  Step previous = rig.plan();
  while (rig.scheduler.counters().retractions == 0) {
    const Step step = rig.plan();
    if (rig.scheduler.counters().retractions == 0) rig.commit(previous);
    if (rig.scheduler.counters().retractions == 0) previous = step;
    else {
      rig.commit(previous, 1000, {{2, 99}});
      rig.commit(step);
    }
  }
  CHECK(rig.heard(2).finish == Finish::STOP);
  CHECK(rig.scheduler.gauges().waiting == 0);
  rig.run_until_idle();
  CHECK(rig.heard(1).tokens.size() == 10);
}

TEST_CASE("a retracted request reports the cached tokens of its first admission") {
  Rig rig({.page_size = 2, .num_pages = 8});
  rig.submit(1, counting(0, 4), 10);
  rig.submit(2, counting(100, 4), 8);
  rig.run_until_idle();
  CHECK(rig.scheduler.counters().retractions > 0);
  CHECK(rig.heard(2).cached_tokens == 0);
  CHECK(rig.scheduler.counters().prompt_tokens == 8);
}

TEST_CASE("abort and deadline reach a victim that still is in flight") {
  for (const bool abort : {true, false}) {
    Rig rig({.page_size = 2, .num_pages = 8, .prefix_cache = false});
    rig.submit(1, counting(0, 4), 10);
    rig.submit(2, counting(100, 4), 8, {}, 50);
    std::vector<Step> in_flight{rig.plan()};
    while (rig.scheduler.counters().retractions == 0) {
      in_flight.push_back(rig.plan());
      if (rig.scheduler.counters().retractions == 0) {
        rig.commit(in_flight.front());
        in_flight.erase(in_flight.begin());
      }
    }
    if (abort) {
      CHECK(rig.scheduler.abort(2));
    } else {
      in_flight.push_back(rig.plan(50));
    }
    CHECK(rig.heard(2).finish == (abort ? Finish::ABORTED : Finish::EXPIRED));
    for (const Step& step : in_flight) rig.commit(step);
    CHECK(rig.scheduler.gauges().waiting == 0);
    rig.run_until_idle();
    CHECK(rig.heard(1).tokens.size() == 10);
  }
}

// Equal answers leave twins: two pages for one. Alone and in need, the survivor folds them.
TEST_CASE("a request that runs alone never runs out of pages, even with twins") {
  Rig rig({.page_size = 1, .num_pages = 12, .max_wait_steps = 0});
  rig.submit(1, counting(0, 3), 3);
  rig.submit(2, counting(0, 3), 10);  // 12 pages when alone: all of them
  rig.run_until_idle();
  CHECK(rig.heard(2).finish == Finish::LENGTH);
  CHECK(rig.heard(2).tokens.size() == 10);
}

// Pools from barely one request's size up, many shapes, any depth: everything finishes.
TEST_CASE("everything always finishes in tiny pools") {
  std::uint64_t seed = 1;
  const auto random = [&seed](int below) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int>((seed >> 33) % static_cast<std::uint64_t>(below));
  };
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const int page_size = 1 + random(4);
    const int longest = 12;
    Rig rig({.page_size = page_size,
             .num_pages = ceil_div(longest, page_size) + random(4),
             .max_seqs = 1 + random(5),
             .max_step_tokens = 5 + random(6),
             .prefill_share = 0.3,
             .max_wait_steps = random(4),
             .prefix_cache = random(4) != 0,
             .hash_bits = 1 + random(8)});
    const int requests = 2 + random(10);
    int expected = 0;
    for (int i = 0; i < requests; ++i) {
      const int prompt = 1 + random(6);
      const int output = 1 + random(longest + 1 - prompt);
      const auto id = static_cast<RequestId>(i + 1);
      REQUIRE(rig.submit(id, counting(random(2), prompt), output).rejection ==
              Rejection::ACCEPTED);
      expected += output;
    }
    rig.run_ahead(static_cast<std::size_t>(random(3)), [&](const Step& step) {
      rig.commit(step, static_cast<TokenId>(2 + step.summary.step % 2));
    });
    CHECK(rig.scheduler.counters().output_tokens == expected);
    for (int i = 0; i < requests; ++i) {
      CHECK(rig.heard(static_cast<RequestId>(i + 1)).finish == Finish::LENGTH);
    }
  }
}
