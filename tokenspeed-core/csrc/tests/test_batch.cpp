// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <set>
#include <tuple>

#include "rig.h"

using namespace tokenspeed;
using namespace tokenspeed::test;

TEST_CASE("a prompt is computed in chunks that do not wait for commits") {
  Rig rig({.max_step_tokens = 4});
  rig.submit(1, counting(0, 10), 2);
  const Step a = rig.plan();
  const Step b = rig.plan();
  const Step c = rig.plan();
  REQUIRE(a.rows.size() == 1);
  CHECK(a.rows[0].flags == NEW_TENANT);
  CHECK(a.rows[0].tokens == counting(0, 4));
  CHECK(b.rows[0].flags == 0);
  CHECK(b.rows[0].tokens == counting(4, 4));
  CHECK(c.rows[0].flags == EMITS);
  CHECK(c.rows[0].tokens == counting(8, 2));
  CHECK(c.rows[0].kv_len == 10);
  const Step d = rig.plan();  // decodes a token that no commit has reported yet
  CHECK(d.rows[0].flags == (DECODE | EMITS));
  CHECK(d.rows[0].kv_len == 11);
  CHECK(rig.plan().rows.empty());  // two tokens were asked for, two are in flight
  rig.commit(a);
  rig.commit(b);
  rig.commit(c, 70);
  rig.commit(d, 71);
  CHECK(rig.heard(1).tokens == Tokens{70, 71});
  CHECK(rig.heard(1).finish == Finish::LENGTH);
  CHECK(!rig.scheduler.has_work());
}

TEST_CASE("decode rows come first and prefill gets its share while one row decodes") {
  Rig rig({.max_step_tokens = 8, .prefill_share = 0.5});
  rig.submit(1, counting(0, 3), 8);
  rig.run();
  rig.submit(2, counting(100, 20), 8);
  const Step mixed = rig.run();
  REQUIRE(mixed.rows.size() == 2);
  CHECK(mixed.summary.num_decode_rows == 1);
  CHECK(mixed.rows[0].request == 1);
  CHECK(mixed.rows[1].request == 2);
  CHECK(mixed.rows[1].count == 4);
  rig.scheduler.abort(1);
  CHECK(rig.run().rows[0].count == 8);  // nobody decodes: all of it
}

TEST_CASE("a tiny share still moves prefill by a token") {
  Rig rig({.max_step_tokens = 8, .prefill_share = 0.01});
  rig.submit(1, counting(0, 3), 20);
  rig.run();
  rig.submit(2, counting(100, 5), 2);
  for (int i = 0; i < 5; ++i) {
    CHECK(rig.run().row_of(2)->count == 1);
  }
}

TEST_CASE("several prompts share a step, in order of arrival") {
  Rig rig({.max_step_tokens = 16});
  rig.submit(5, counting(0, 6));
  rig.submit(4, counting(100, 6));
  rig.submit(3, counting(200, 6));
  const Step step = rig.run();
  REQUIRE(step.rows.size() == 3);
  CHECK(step.rows[0].request == 5);
  CHECK(step.rows[1].request == 4);
  CHECK(step.rows[2].request == 3);
  CHECK(step.rows[2].count == 4);
  CHECK(step.summary.num_emits == 2);
}

TEST_CASE("each table entry is written exactly once, in the row's first step with it") {
  Rig rig({.page_size = 2, .num_pages = 30, .max_step_tokens = 5});
  std::set<std::tuple<SlotId, Epoch, int>> written;
  for (RequestId id = 1; id <= 6; ++id) rig.submit(id, counting(static_cast<int>(id), 5), 6);
  while (rig.scheduler.has_work()) {
    const Step step = rig.plan();
    for (const Delta& delta : step.deltas) {
      CHECK(written.insert({delta.slot, delta.epoch, delta.index}).second);
    }
    for (const Row& row : step.rows) {
      for (int index = 0; index < ceil_div(row.kv_len, 2); ++index) {
        CHECK(written.count({row.slot, row.epoch, index}) == 1);
      }
    }
    rig.commit(step);
  }
}

TEST_CASE("deltas that do not fit put an admission off, not away") {
  // D has room for one whole table and a bit; two long prompts in one step do not fit.
  Rig rig({.page_size = 1, .num_pages = 64, .max_seqs = 4, .max_step_tokens = 64}, 30);
  rig.submit(1, counting(0, 25), 2);
  rig.submit(2, counting(100, 25), 2);
  CHECK(rig.run().rows.size() == 1);
  CHECK(rig.run().row_of(2) != nullptr);
  rig.run_until_idle();
  CHECK(rig.heard(2).finish == Finish::LENGTH);
}

TEST_CASE("a step without rows needs no commit, and accepts one") {
  Rig rig;
  const Step empty = rig.plan();
  CHECK(empty.summary.num_rows == 0);
  CHECK(!rig.scheduler.has_work());
  rig.scheduler.commit(empty.summary.step, {});
  rig.submit(1, counting(0, 3), 1);
  rig.run();
  CHECK(rig.heard(1).finish == Finish::LENGTH);
}

TEST_CASE("results that do not belong are refused before anything changes") {
  Rig rig;
  rig.submit(1, counting(0, 3), 5);
  const Step first = rig.plan();
  const Step second = rig.plan();
  const std::vector<std::int32_t> one{1};
  const Tokens token{9};
  const std::vector<std::uint8_t> ok{0};
  const auto step = first.summary.step;
  CHECK_THROWS(rig.scheduler.commit(step + 1, {one, token, ok}));
  CHECK_THROWS(rig.scheduler.commit(step + 7, {one, token, ok}));
  CHECK_THROWS(rig.scheduler.commit(step, {{}, {}, {}}));
  const std::vector<std::int32_t> none{0};
  CHECK_THROWS(rig.scheduler.commit(step, {none, token, ok}));
  rig.commit(first);
  CHECK_THROWS(rig.scheduler.commit(step, {one, token, ok}));
  rig.commit(second);
  CHECK(rig.heard(1).tokens.size() == 2);
}

TEST_CASE("equal calls make equal digests, and any difference shows") {
  Rig a, b, other_token, other_id, other_page;
  for (Rig* rig : {&a, &b, &other_token, &other_id, &other_page}) {
    rig->submit(9, counting(50, rig == &other_page ? 10 : 6), 1);  // leaves one page or two
    rig->run();
  }
  a.submit(1, counting(0, 6));
  b.submit(1, counting(0, 6));
  other_token.submit(1, counting(1, 6));
  other_id.submit(2, counting(0, 6));
  other_page.submit(1, counting(0, 6));
  const auto digest = a.run().summary.digest;
  CHECK(digest == b.run().summary.digest);
  CHECK(digest != other_token.run().summary.digest);
  CHECK(digest != other_id.run().summary.digest);
  CHECK(digest != other_page.run().summary.digest);
  for (int i = 0; i < 3; ++i) {
    CHECK(a.run().summary.digest == b.run().summary.digest);
  }
}
