// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include "rig.h"

using namespace tokenspeed;
using namespace tokenspeed::test;

namespace {

// Rows of up to four tokens.
Shape shape() { return {.max_row_tokens = 4}; }

void ask(Rig& rig, RequestId id, const Tokens& prompt, int max_new_tokens, int drafts = 3,
         const Tokens& stop_ids = {}) {
  REQUIRE(rig.scheduler
              .submit({.id = id,
                       .tokens = prompt,
                       .max_new_tokens = max_new_tokens,
                       .stop_ids = stop_ids,
                       .draft_tokens = drafts})
              .rejection == Rejection::ACCEPTED);
}

}  // namespace

TEST_CASE("a decode row verifies the drafts that were asked for, with pages for all of them") {
  Rig rig(shape());
  ask(rig, 1, counting(0, 3), 20);
  const Step prompt = rig.run();
  CHECK(prompt.rows[0].count == 3);  // no drafts of a prompt
  const Step step = rig.plan();
  REQUIRE(step.rows.size() == 1);
  CHECK(step.summary.num_decode_rows == 1);
  CHECK(step.rows[0].flags == (DECODE | EMITS));
  CHECK(step.rows[0].count == 4);
  CHECK(step.rows[0].kv_len == 7);
  CHECK(step.rows[0].tokens == Tokens{1000, 0, 0, 0});  // the last token, and what the device has
  REQUIRE(step.deltas.size() == 1);
  CHECK(step.deltas[0].index == 1);
  CHECK(rig.scheduler.page_table(1).size() == 2);
  rig.commit(step);
}

TEST_CASE("drafts that were given are verified where nothing of the request is in flight") {
  Rig rig(shape());
  ask(rig, 1, counting(0, 3), 20, 0);
  rig.run();
  const Tokens drafts{50, 51};
  CHECK(rig.scheduler.set_drafts(1, drafts));
  CHECK_FALSE(rig.scheduler.set_drafts(2, drafts));
  const Step step = rig.plan();
  CHECK(step.rows[0].tokens == Tokens{1000, 50, 51});
  CHECK(step.summary.num_emits == 3);
  CHECK(rig.scheduler.set_drafts(1, drafts));
  const Step ahead = rig.plan();
  CHECK(ahead.rows[0].count == 1);
  rig.commit_tokens(step, {{1, Tokens{50, 9}}});
  CHECK(rig.heard(1).tokens == Tokens{1000, 50, 9});
}

TEST_CASE("what was not accepted is rolled back: the next row starts behind the accepted tokens") {
  for (int accepted = 1; accepted <= 4; ++accepted) {
    CAPTURE(accepted);
    Rig rig(shape());
    ask(rig, 1, counting(0, 3), 20);
    rig.run();
    const Step step = rig.plan();
    rig.commit_tokens(step, {{1, counting(50, accepted)}});
    CHECK(rig.heard(1).tokens == Tokens{1000} + counting(50, accepted));
    const Step next = rig.plan();
    CHECK(next.rows[0].count == 4);
    CHECK(next.rows[0].kv_len == 3 + accepted + 4);
    rig.commit(next);
  }
}

TEST_CASE("rows in flight assume that all is accepted, each commit takes back what was not") {
  Rig rig(shape());
  ask(rig, 1, counting(0, 3), 30);
  rig.run();
  const Step a = rig.plan();
  const Step b = rig.plan();
  const Step c = rig.plan();
  CHECK(a.rows[0].kv_len == 7);
  CHECK(b.rows[0].kv_len == 11);
  CHECK(c.rows[0].kv_len == 15);
  rig.commit_tokens(a, {{1, {50}}});
  rig.commit_tokens(b, {{1, {51, 52}}});
  const Step d = rig.plan();  // 3 + 1 + 2, then at most four of c
  CHECK(d.rows[0].kv_len == 14);
  rig.commit_tokens(c, {{1, {53, 54, 55, 56}}});
  rig.commit_tokens(d, {{1, {57}}});
  CHECK(rig.plan().rows[0].kv_len == 15);
  CHECK(rig.heard(1).tokens == Tokens{1000} + counting(50, 8));
}

TEST_CASE("a stop id inside the accepted tokens cuts the rest") {
  Rig rig(shape());
  ask(rig, 1, counting(0, 3), 20, 3, {99});
  rig.run();
  const Step step = rig.plan();
  rig.commit_tokens(step, {{1, {50, 99, 51, 99}}});
  CHECK(rig.heard(1).tokens == Tokens{1000, 50, 99});
  CHECK(rig.heard(1).finish == Finish::STOP);
  CHECK(rig.heard(1).stop_token == 99);
  CHECK(!rig.scheduler.has_work());
  CHECK(rig.scheduler.counters().output_tokens == 3);
  // 3 of the prompt, 1000, 50: the KV of the stop id was never asked for, that of 51 is no prefix.
  rig.submit(2, counting(0, 3) + Tokens{1000, 50, 99, 51, 7}, 1);
  rig.run_until_idle();
  CHECK(rig.heard(2).cached_tokens == 5);
}

TEST_CASE("an answer is never longer than max_new_tokens, and no row is planned past it") {
  for (int accepted = 1; accepted <= 3; ++accepted) {
    CAPTURE(accepted);
    Rig rig(shape());
    ask(rig, 1, counting(0, 3), 4);
    rig.run();
    const Step step = rig.plan();
    CHECK(step.rows[0].count == 3);  // one token is there, three are left
    CHECK(rig.plan().rows.empty());
    rig.commit_tokens(step, {{1, counting(50, accepted)}});
    CHECK(rig.heard(1).tokens == Tokens{1000} + counting(50, accepted));
    CHECK((rig.heard(1).finish == Finish::LENGTH) == (accepted == 3));
    if (accepted < 3) CHECK(rig.plan().rows[0].count == 3 - accepted);
  }
}

TEST_CASE("more tokens than a row has are refused, and no token is one too few") {
  Rig rig(shape());
  ask(rig, 1, counting(0, 3), 4);
  rig.run();
  const Step step = rig.plan();
  REQUIRE(step.rows[0].count == 3);
  CHECK_THROWS(rig.commit_tokens(step, {{1, {1, 2, 3, 4}}}));
  CHECK_THROWS(rig.commit_tokens(step, {{1, {}}}));
  rig.commit_tokens(step, {{1, {1, 2, 3}}});
  CHECK(rig.heard(1).finish == Finish::LENGTH);
}

TEST_CASE("drafts are below max_row_tokens, and nobody rolls back a recurrent state") {
  Rig rig(shape());
  const Tokens prompt = counting(0, 3);
  for (const int drafts : {-1, 4}) {
    CHECK_THROWS(rig.scheduler.submit({.id = 1,
                                       .tokens = prompt,
                                       .max_new_tokens = 4,
                                       .stop_ids = {},
                                       .draft_tokens = drafts}));
  }
  CHECK_THROWS(Rig({.groups = {{"state", 4, 0}}, .max_row_tokens = 2}));
}

TEST_CASE("drafts take no query token that another request needs") {
  Rig rig({.max_seqs = 3, .max_step_tokens = 6, .max_row_tokens = 4});
  for (RequestId id = 1; id <= 3; ++id) ask(rig, id, counting(static_cast<int>(id) * 100, 2), 20);
  rig.run();
  const Step step = rig.run();
  REQUIRE(step.rows.size() == 3);
  CHECK(step.rows[0].count == 4);
  CHECK(step.rows[1].count == 1);
  CHECK(step.rows[2].count == 1);
}

TEST_CASE("a request without drafts gets rows of one token beside others") {
  Rig rig(shape());
  ask(rig, 1, counting(0, 3), 20, 3);
  ask(rig, 2, counting(100, 3), 20, 0);
  rig.run();
  const Step step = rig.run();
  CHECK(step.row_of(1)->count == 4);
  CHECK(step.row_of(2)->count == 1);
}

TEST_CASE("a page that drafts reserved and did not use is there for the tokens that follow") {
  Rig rig(shape());
  ask(rig, 1, counting(0, 3), 20);
  rig.run();
  for (int kv_len = 3; kv_len < 8; ++kv_len) {
    const Step step = rig.plan();
    CHECK(step.rows[0].kv_len == kv_len + 4);
    CHECK(static_cast<int>(rig.scheduler.page_table(1).size()) == ceil_div(kv_len + 4, 4));
    CHECK(step.deltas.size() == (kv_len == 3 || kv_len == 5 ? 1 : 0));
    rig.commit(step);
  }
}

TEST_CASE("an abort with drafts in flight drains, and nothing of them is published") {
  Rig rig(shape());
  ask(rig, 1, counting(0, 3), 20);
  rig.run();
  const Step a = rig.plan();
  const Step b = rig.plan();
  CHECK(rig.scheduler.abort(1));
  rig.commit_tokens(a, {{1, {50, 51, 52, 53}}});
  CHECK(rig.scheduler.ledger().active == 3);
  rig.commit_tokens(b, {{1, {54}}});
  CHECK(!rig.scheduler.has_work());
  CHECK(rig.heard(1).tokens == Tokens{1000});
  CHECK(rig.scheduler.ledger().cached == 1);  // three tokens of the prompt
}

TEST_CASE("with drafts, everything finishes in a pool that just fits one, at any depth") {
  for (const std::size_t depth : {0u, 1u, 2u}) {
    for (int accepted = 1; accepted <= 4; ++accepted) {
      CAPTURE(depth);
      CAPTURE(accepted);
      Rig rig({.page_size = 2, .num_pages = 8, .max_row_tokens = 4});
      for (RequestId id = 1; id <= 3; ++id) {
        ask(rig, id, counting(static_cast<int>(id) * 100, 5), 12);  // 16 tokens: all pages
      }
      rig.run_ahead(depth, [&](const Step& step) {
        std::map<RequestId, Tokens> answers;
        for (const Row& row : step.rows) {
          const int most = (row.flags & DECODE) != 0 ? row.count : 1;
          answers[row.request] = counting(50, std::min(accepted, most));
        }
        rig.commit_tokens(step, answers);
      });
      for (RequestId id = 1; id <= 3; ++id) {
        CHECK(rig.heard(id).finish == Finish::LENGTH);
        CHECK(rig.heard(id).tokens.size() == 12);
      }
      CHECK(rig.scheduler.counters().output_tokens == 36);
    }
  }
}
