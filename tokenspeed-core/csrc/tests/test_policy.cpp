// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include "rig.h"

using namespace tokenspeed;
using namespace tokenspeed::test;

namespace {

void ask(Rig& rig, RequestId id, const Tokens& prompt, int priority = 0, std::int64_t now_ms = 0,
         int max_new_tokens = 1) {
  REQUIRE(rig.scheduler
              .submit({.id = id,
                       .tokens = prompt,
                       .max_new_tokens = max_new_tokens,
                       .stop_ids = {},
                       .priority = priority,
                       .now_ms = now_ms})
              .rejection == Rejection::ACCEPTED);
}

Tokens prompt_of(RequestId id, int count = 3) {
  return counting(static_cast<int>(id) * 100, count);
}

// Who got a first row, in that order, until everything ended.
std::vector<RequestId> order(Rig& rig) {
  std::vector<RequestId> ids;
  while (rig.scheduler.has_work()) {
    const Step step = rig.run();
    REQUIRE(step.summary.num_rows > 0);
    for (const Row& row : step.rows) {
      if ((row.flags & NEW_TENANT) != 0) ids.push_back(row.request);
    }
  }
  return ids;
}

using Ids = std::vector<RequestId>;

}  // namespace

TEST_CASE("a higher class goes first, inside a class the order of arrival holds") {
  Rig rig({.max_seqs = 1});
  ask(rig, 1, prompt_of(1));
  ask(rig, 2, prompt_of(2), -1);
  ask(rig, 3, prompt_of(3), 2);
  ask(rig, 4, prompt_of(4));
  ask(rig, 5, prompt_of(5), 2);
  CHECK(order(rig) == Ids{3, 5, 1, 4, 2});
}

TEST_CASE("a class is worth aging_ms of waiting and no more") {
  Rig rig({.max_seqs = 1, .aging_ms = 1000});
  ask(rig, 1, prompt_of(1), 0, 0);
  ask(rig, 2, prompt_of(2), 1, 999);
  ask(rig, 3, prompt_of(3), 1, 1000);  // a tie: who came first
  ask(rig, 4, prompt_of(4), 1, 1001);
  ask(rig, 5, prompt_of(5), 3, 2500);
  CHECK(order(rig) == Ids{5, 2, 1, 3, 4});
}

TEST_CASE("priorities out of range are refused") {
  Rig rig;
  const Tokens prompt = prompt_of(1);
  for (const int priority : {kMaxPriority + 1, -kMaxPriority - 1}) {
    CHECK_THROWS(rig.scheduler.submit({.id = 1,
                                       .tokens = prompt,
                                       .max_new_tokens = 1,
                                       .stop_ids = {},
                                       .priority = priority}));
  }
  ask(rig, 1, prompt, kMaxPriority);
  ask(rig, 2, prompt, -kMaxPriority);
}

TEST_CASE("a head that does not fit is passed max_bypass times, then nobody passes") {
  Rig rig({.num_pages = 12, .max_seqs = 6, .max_step_tokens = 32, .max_bypass = 2});
  ask(rig, 1, prompt_of(1, 24), 0, 0, 20);
  rig.run();
  ask(rig, 2, prompt_of(2, 40));  // ten pages of the six that are left
  for (RequestId id = 3; id <= 5; ++id) ask(rig, id, prompt_of(id));
  const Step step = rig.run();
  CHECK(step.row_of(2) == nullptr);
  CHECK(step.row_of(3) != nullptr);
  CHECK(step.row_of(4) != nullptr);
  CHECK(step.row_of(5) == nullptr);
  CHECK(rig.scheduler.counters().bypasses == 2);
  CHECK(rig.run().row_of(5) == nullptr);
  CHECK(rig.scheduler.abort(1));
  const Step after = rig.run();
  CHECK(after.row_of(2) != nullptr);
  CHECK(after.row_of(5) == nullptr);  // its tokens went to 2
  rig.run_until_idle();
  CHECK(rig.scheduler.counters().bypasses == 2);
  CHECK(rig.heard(5).finish == Finish::LENGTH);
}

TEST_CASE("a new head is passed anew") {
  Rig rig({.num_pages = 12, .max_seqs = 6, .max_step_tokens = 32, .max_bypass = 1});
  ask(rig, 1, prompt_of(1, 24), 0, 0, 20);
  rig.run();
  ask(rig, 2, prompt_of(2, 40));
  ask(rig, 3, prompt_of(3));
  ask(rig, 4, prompt_of(4, 40));
  ask(rig, 5, prompt_of(5));
  CHECK(rig.run().row_of(5) == nullptr);
  CHECK(rig.scheduler.abort(2));
  CHECK(rig.run().row_of(5) != nullptr);  // passes 4
  CHECK(rig.scheduler.counters().bypasses == 2);
}

TEST_CASE("of equal turns, who has more blocks cached goes first, and counts as a bypass") {
  Rig rig({.num_pages = 32, .max_seqs = 1});
  ask(rig, 9, counting(0, 12));
  rig.run_until_idle();
  ask(rig, 1, prompt_of(1));
  ask(rig, 2, counting(0, 4) + Tokens{7});
  ask(rig, 3, counting(0, 12) + Tokens{7});
  CHECK(order(rig) == Ids{3, 2, 1});
  CHECK(rig.scheduler.counters().bypasses == 2);
}

TEST_CASE("cached blocks let nobody pass for longer than max_bypass allows") {
  Rig rig({.num_pages = 32, .max_seqs = 1, .max_bypass = 2});
  ask(rig, 9, counting(0, 12));
  rig.run_until_idle();
  ask(rig, 1, prompt_of(1));
  for (RequestId id = 2; id <= 5; ++id) {
    ask(rig, id, counting(0, 12) + Tokens{static_cast<TokenId>(id)});
  }
  CHECK(order(rig) == Ids{2, 3, 1, 4, 5});
}

TEST_CASE("cached blocks let no lower class pass") {
  Rig rig({.num_pages = 32, .max_seqs = 1});
  ask(rig, 9, counting(0, 12));
  rig.run_until_idle();
  ask(rig, 1, prompt_of(1), 1);
  ask(rig, 2, counting(0, 12) + Tokens{7}, 0);
  CHECK(order(rig) == Ids{1, 2});
  CHECK(rig.scheduler.counters().bypasses == 0);
}

TEST_CASE("decode rows stand in the order of their turn, not of their arrival") {
  Rig rig({.max_step_tokens = 16});
  ask(rig, 1, prompt_of(1), 0, 0, 5);
  rig.run();
  ask(rig, 2, prompt_of(2), 1, 0, 5);
  rig.run();
  const Step step = rig.run();
  REQUIRE(step.rows.size() == 2);
  CHECK(step.rows[0].request == 2);
  CHECK(step.rows[1].request == 1);
}

TEST_CASE("the victim is whose turn came last, be it the older one") {
  Rig rig({.page_size = 2, .num_pages = 8, .prefix_cache = false});
  ask(rig, 1, prompt_of(1, 4), 0, 0, 10);
  ask(rig, 2, prompt_of(2, 4), 1, 0, 10);
  for (int i = 0; rig.scheduler.counters().retractions == 0; ++i) {
    REQUIRE(i < 20);
    rig.run();
  }
  CHECK(rig.scheduler.gauges().waiting == 1);
  const Step step = rig.run();
  CHECK(step.row_of(1) == nullptr);
  CHECK(step.row_of(2) != nullptr);
  rig.run_until_idle();
  CHECK(rig.heard(1).tokens.size() == 10);
}

TEST_CASE("a victim keeps its turn: it comes in before those that came later") {
  Rig rig({.page_size = 2, .num_pages = 8, .max_seqs = 2, .prefix_cache = false, .max_bypass = 0});
  ask(rig, 1, prompt_of(1, 4), 0, 0, 10);
  ask(rig, 2, prompt_of(2, 4), 0, 0, 8);
  ask(rig, 3, prompt_of(3, 2), 0, 0, 1);
  CHECK(order(rig) == Ids{1, 2, 2, 3});
}
