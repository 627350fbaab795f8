// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include "rig.h"

using namespace tokenspeed;
using namespace tokenspeed::test;

namespace {

using Copies = std::vector<std::pair<PageId, PageId>>;
using Groups = std::vector<CacheGroupConfig>;

const CacheGroupConfig kFull{"full", 4, 0};
const CacheGroupConfig kState{"state", 4, 0};

CacheGroupConfig sliding(int page_size, int window) { return {"sliding", page_size, window}; }

Shape shape(Groups groups, int num_pages, int max_step_tokens = 16) {
  return {.num_pages = num_pages,
          .max_step_tokens = max_step_tokens,
          .groups = std::move(groups)};
}

// Runs one prompt to its end; what was cached of it.
int cached_of(Rig& rig, RequestId id, const Tokens& prompt) {
  rig.submit(id, prompt, 1);
  rig.run_until_idle();
  CHECK(rig.heard(id).finish == Finish::LENGTH);
  return rig.heard(id).cached_tokens;
}

int held(Rig& rig) {
  const Gauges gauges = rig.scheduler.gauges();
  return gauges.total_pages - gauges.free_pages - gauges.cached_pages;
}

Delta delta_of(const Step& step, int group) {
  const auto it = std::find_if(step.deltas.begin(), step.deltas.end(),
                               [&](const Delta& delta) { return delta.group == group; });
  REQUIRE(it != step.deltas.end());
  return *it;
}

}  // namespace

// -- sliding ------------------------------------------------------------------------------------

TEST_CASE("a hit needs of a sliding group only the pages of its window") {
  // 16 tokens leave four blocks: four full pages and four of the window's group. The next prompt
  // takes the three free pages and evicts three: what the window had passed, oldest first.
  Rig rig(shape({kFull, sliding(4, 5)}, 11));
  cached_of(rig, 1, counting(0, 16));
  CHECK(rig.scheduler.ledger().cached == 8);
  SUBCASE("as long as nothing is evicted, at every block end") {
    CHECK(cached_of(rig, 2, counting(0, 8) + Tokens{900}) == 8);
  }
  SUBCASE("the last boundary is warm by its last page") {
    cached_of(rig, 2, counting(500, 12));
    REQUIRE(rig.scheduler.counters().evictions == 3);
    CHECK(cached_of(rig, 3, counting(0, 16) + Tokens{900}) == 16);
  }
  SUBCASE("a boundary whose window is gone is not, though every full page is there") {
    cached_of(rig, 2, counting(500, 12));
    CHECK(cached_of(rig, 3, counting(0, 8) + Tokens{900}) == 0);
  }
}

TEST_CASE("a partial hit needs the pages that its window reads, and copies only these") {
  // Blocks of four tokens are two pages of the window's group, which reads two tokens back.
  Rig rig(shape({kFull, sliding(2, 3)}, 24));
  cached_of(rig, 1, counting(0, 8));
  rig.submit(2, counting(0, 7) + Tokens{900, 901}, 1);
  const Step step = rig.plan();
  // Token 7 reads from 5 on: both pages of the group's block, and the full page.
  CHECK(step.copies.size() == 3);
  CHECK(step.rows[0].count == 2);
  rig.commit(step);
  CHECK(rig.heard(2).cached_tokens == 7);
}

TEST_CASE("pages behind the window are given back while the request runs") {
  for (const bool prefix_cache : {true, false}) {
    CAPTURE(prefix_cache);
    Rig rig({.num_pages = 12,
             .max_step_tokens = 4,
             .prefix_cache = prefix_cache,
             .groups = {sliding(2, 4)}});
    rig.submit(1, counting(0, 4), 40);
    for (int kv_len = 4; kv_len < 43; ++kv_len) {
      rig.run();
      CHECK(held(rig) == ceil_div(kv_len, 2) - (kv_len - 3) / 2);
    }
    rig.run();
    CHECK(rig.heard(1).finish == Finish::LENGTH);
    CHECK(held(rig) == 0);
  }
}

TEST_CASE("beside a full group, only the window's pages are given back") {
  Rig rig(shape({kFull, sliding(4, 4)}, 40));
  rig.submit(1, counting(0, 16), 20);
  rig.run();
  // The window of token 16 begins with 13.
  CHECK(held(rig) == 4 + 1);
  CHECK(rig.scheduler.page_table(1, 0) == std::vector<PageId>{1, 2, 3, 4});
  const std::vector<PageId> window = rig.scheduler.page_table(1, 1);
  CHECK(std::count(window.begin(), window.end(), kNullPage) == 3);
}

TEST_CASE("sliding only: a hit sends the window's entries and no others") {
  Rig rig(shape({sliding(4, 5)}, 16));
  cached_of(rig, 1, counting(0, 16));
  rig.submit(2, counting(0, 16) + Tokens{900}, 2);
  const Step step = rig.plan();
  CHECK(step.rows[0].count == 1);
  REQUIRE(step.deltas.size() == 2);
  CHECK(step.deltas[0].index == 3);
  CHECK(step.deltas[1].index == 4);
  rig.commit(step);
  CHECK(rig.heard(2).cached_tokens == 16);
}

// -- capacity -----------------------------------------------------------------------------------

TEST_CASE("submit refuses what can never fit, exactly") {
  // 100 tokens of KV; steps of eight.
  struct Case {
    Groups groups;
    int needed;
  };
  const std::vector<Case> cases = {
      {{kFull}, 25},
      // 8 tokens of window, 16 in flight, 3 before them in a block: 7 pages, and one for the ends
      {{sliding(4, 9)}, 8},
      {{sliding(4, 1000)}, 25},
      {{sliding(1, 1)}, 17},
      {{kState}, 1},
      {{kFull, sliding(4, 9)}, 33},
      {{kFull, {"full", 6, 0}}, 42},
      {{kFull, kState}, 26},
      {{kState, {"state", 8, 0}}, 2},
      {{kFull, sliding(2, 5), kState}, 25 + 13 + 1},
  };
  for (const Case& c : cases) {
    CAPTURE(c.groups[0].kind);
    CAPTURE(c.groups.size());
    CAPTURE(c.needed);
    Rig tight(shape(c.groups, std::max(1, c.needed - 1), 8));
    if (c.needed > 1) {
      const SubmitResult refused = tight.submit(1, counting(0, 61), 40);
      CHECK(refused.rejection == Rejection::NEVER_FITS);
      CHECK(refused.needed == c.needed);
      CHECK(refused.available == c.needed - 1);
    }
    for (const std::size_t depth : {0u, 1u, 2u}) {
      CAPTURE(depth);
      Rig rig(shape(c.groups, c.needed, 8));
      REQUIRE(rig.submit(1, counting(0, 61), 40).rejection == Rejection::ACCEPTED);
      rig.run_ahead(depth, [&](const Step& step) { rig.commit(step); });
      CHECK(rig.heard(1).finish == Finish::LENGTH);
      CHECK(rig.heard(1).tokens.size() == 40);
    }
  }
}

// -- several full groups ------------------------------------------------------------------------

TEST_CASE("groups of different page sizes: a block ends where all their pages end") {
  Rig rig(shape({kFull, {"full", 6, 0}}, 20, 32));
  CHECK(rig.scheduler.layout().block_size() == 12);
  cached_of(rig, 1, counting(0, 30));
  // Two blocks of three and two pages, and six more tokens: two pages and one.
  CHECK(rig.scheduler.ledger().cached == 13);
  SUBCASE("the tail is adopted in both groups") {
    rig.submit(2, counting(0, 30) + Tokens{900, 901}, 1);
    const Step step = rig.plan();
    CHECK(step.copies.empty());
    CHECK(rig.scheduler.page_table(2, 0).size() == 8);
    CHECK(rig.scheduler.page_table(2, 1).size() == 6);
    CHECK(rig.scheduler.gauges().free_pages == 6);
    rig.commit(step);
    CHECK(rig.heard(2).cached_tokens == 30);
    CHECK(rig.scheduler.counters().adoptions == 1);
  }
  SUBCASE("a fork inside a block copies whole pages of it, of each group") {
    rig.submit(2, counting(0, 17) + Tokens{900, 901}, 1);
    const Step step = rig.plan();
    CHECK(step.copies.size() == 3);  // five tokens: two pages of four, one of six
    rig.commit(step);
    CHECK(rig.heard(2).cached_tokens == 17);
  }
}

TEST_CASE("all full groups come and go together") {
  Rig rig(shape({kFull, kFull}, 8));
  cached_of(rig, 1, counting(0, 12));
  CHECK(rig.scheduler.ledger().cached == 6);
  cached_of(rig, 2, counting(500, 8));  // four pages of two free ones
  CHECK(rig.scheduler.counters().evictions == 2);
  CHECK(cached_of(rig, 3, counting(0, 12) + Tokens{900}) == 8);
}

// -- state --------------------------------------------------------------------------------------

TEST_CASE("a prompt leaves the state at its last block end: copy on write") {
  for (const bool ahead : {false, true}) {
    CAPTURE(ahead);
    Rig rig(shape({kFull, kState}, 16));
    rig.submit(1, counting(0, 10), 2);
    const Step first = rig.plan();
    CHECK(first.rows[0].count == 8);  // the chunk ends there
    CHECK(first.copies.empty());
    const PageId live = delta_of(first, 1).page;
    if (!ahead) rig.commit(first);
    const Step second = rig.plan();
    CHECK(second.rows[0].count == 2);
    const Delta moved = delta_of(second, 1);
    CHECK(moved.index == 0);
    CHECK(moved.page != live);
    CHECK(second.copies == Copies{{live, moved.page}});
    CHECK(rig.scheduler.page_table(1, 1) == std::vector<PageId>{moved.page});
    if (ahead) rig.commit(first);
    rig.commit(second);
    rig.run_until_idle();
    CHECK(rig.scheduler.ledger().cached == 3);  // two full pages and the checkpoint
    rig.submit(2, counting(0, 8) + Tokens{90, 91}, 1);
    const Step hit = rig.plan();
    CHECK(hit.copies == Copies{{live, rig.scheduler.page_table(2, 1)[0]}});
    CHECK(hit.rows[0].count == 2);
    rig.commit(hit);
    CHECK(rig.heard(2).cached_tokens == 8);
  }
}

TEST_CASE("a prompt that ends with a block leaves its own state there, without a copy") {
  Rig rig(shape({kFull, kState}, 16));
  cached_of(rig, 1, counting(0, 8));
  CHECK(rig.scheduler.counters().page_copies == 0);
  CHECK(rig.scheduler.ledger().cached == 3);
  CHECK(cached_of(rig, 2, counting(0, 8) + Tokens{90}) == 8);
}

TEST_CASE("a checkpoint is made where a resident prefix ended") {
  Rig rig(shape({kFull, kState}, 24, 32));
  cached_of(rig, 1, counting(0, 16));  // one chunk: a checkpoint at 16 only
  rig.submit(2, counting(0, 8) + counting(90, 6), 1);
  const Step promoted = rig.run();
  CHECK(promoted.rows[0].count == 8);  // computes them again, to have the state at 8
  CHECK(rig.run().rows[0].count == 4);
  CHECK(rig.run().rows[0].count == 2);
  CHECK(rig.heard(2).cached_tokens == 0);
  CHECK(cached_of(rig, 3, counting(0, 8) + counting(70, 6)) == 8);
  CHECK(cached_of(rig, 4, counting(0, 8) + counting(90, 6)) == 12);
}

TEST_CASE("a request that decodes past a block end leaves the state there") {
  Rig rig(shape({kFull, kState}, 16));
  rig.submit(1, counting(0, 3), 7);
  for (int start : {0, 3, 4, 5, 6, 7, 8}) {
    CAPTURE(start);
    const Step step = rig.run(static_cast<TokenId>(50 + start));
    CHECK(step.rows[0].kv_len - step.rows[0].count == start);
    const bool at_block_end = start == 4 || start == 8;
    CHECK(step.copies.size() == (at_block_end ? 1 : 0));
  }
  CHECK(rig.scheduler.counters().page_copies == 2);
  CHECK(cached_of(rig, 2, counting(0, 3) + Tokens{50, 53, 54, 55, 56, 57, 58}) == 8);
}

TEST_CASE("without a page to spare, a row goes on without a checkpoint") {
  // Two full pages and the live state.
  Rig rig(shape({kFull, kState}, 3));
  rig.submit(1, counting(0, 6), 3);
  while (rig.scheduler.has_work()) {
    CHECK(rig.run().copies.empty());
  }
  CHECK(rig.heard(1).finish == Finish::LENGTH);
  CHECK(cached_of(rig, 2, counting(0, 6)) == 0);
}

TEST_CASE("full pages without a checkpoint are no hit") {
  Rig rig(shape({kFull, kState}, 8, 32));
  cached_of(rig, 1, counting(0, 10));
  REQUIRE(rig.scheduler.ledger().cached == 3);
  cached_of(rig, 2, counting(500, 20));  // six pages, five are free: the checkpoint is the oldest
  CHECK(rig.scheduler.counters().evictions == 1);
  CHECK(cached_of(rig, 3, counting(0, 8) + Tokens{90, 91}) == 0);
}

TEST_CASE("each request that starts from a checkpoint has a copy of its own") {
  Rig rig(shape({kFull, kState}, 16));
  cached_of(rig, 1, counting(0, 8));
  rig.submit(2, counting(0, 8) + Tokens{90}, 1);
  rig.submit(3, counting(0, 8) + Tokens{91}, 1);
  const Step step = rig.plan();
  REQUIRE(step.copies.size() == 2);
  CHECK(step.copies[0].first == step.copies[1].first);
  CHECK(step.copies[0].second == rig.scheduler.page_table(2, 1)[0]);
  CHECK(step.copies[1].second == rig.scheduler.page_table(3, 1)[0]);
  CHECK(step.copies[0].second != step.copies[1].second);
  rig.commit(step);
}

TEST_CASE("state only: a checkpoint is all that is cached and all that a hit needs") {
  Rig rig(shape({kState}, 8));
  CHECK(cached_of(rig, 1, counting(0, 10)) == 0);
  CHECK(rig.scheduler.ledger().cached == 1);
  rig.submit(2, counting(0, 10), 3);
  const Step step = rig.plan();
  CHECK(step.copies.size() == 1);
  CHECK(step.deltas.size() == 1);
  CHECK(step.rows[0].count == 2);
  rig.commit(step);
  CHECK(rig.heard(2).cached_tokens == 8);
}

TEST_CASE("a hit is warm for every group: full, window and state") {
  Rig rig(shape({kFull, sliding(4, 6), kState}, 30));
  cached_of(rig, 1, counting(0, 14));
  // Checkpoint at 12 only.
  CHECK(cached_of(rig, 2, counting(0, 13)) == 12);
  CHECK(cached_of(rig, 3, counting(0, 9)) == 0);
  CHECK(cached_of(rig, 4, counting(0, 9) + Tokens{90}) == 8);  // 3 has left one there
}

// -- everything ---------------------------------------------------------------------------------

namespace {

class Dice {
 public:
  int operator()(int below) {
    seed_ = seed_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int>((seed_ >> 33) % static_cast<std::uint64_t>(below));
  }

 private:
  std::uint64_t seed_ = 1;
};

Groups any_groups(Dice& dice) {
  Groups groups;
  const int count = 1 + dice(3);
  for (int i = 0; i < count; ++i) {
    const int page_size = 1 + dice(4);
    switch (dice(3)) {
      case 0:
        groups.push_back({"full", page_size, 0});
        break;
      case 1:
        groups.push_back(sliding(page_size, 1 + dice(6)));
        break;
      default:
        groups.push_back({"state", page_size, 0});
    }
  }
  return groups;
}

// Commits the oldest step beyond `depth`, and ends transfers some plans later, one in four badly.
void drive(Rig& rig, Dice& dice, std::size_t depth) {
  std::vector<Step> in_flight;
  std::vector<TransferId> transfers;
  for (int steps = 0; rig.scheduler.has_work(); ++steps) {
    REQUIRE(steps < 3000);
    const Step step = rig.plan();
    for (const auto* moves : {&step.stores, &step.loads}) {
      for (const Move& move : *moves) {
        if (transfers.empty() || transfers.back() != move.transfer) {
          transfers.push_back(move.transfer);
        }
      }
    }
    if (!step.rows.empty()) in_flight.push_back(step);
    if (in_flight.size() > depth || (step.rows.empty() && !in_flight.empty())) {
      const Step& oldest = in_flight.front();
      rig.commit(oldest, static_cast<TokenId>(2 + oldest.summary.step % 2));
      in_flight.erase(in_flight.begin());
    } else if (step.rows.empty()) {
      REQUIRE_MESSAGE((!transfers.empty() || step.summary.blocked == Blocked::IDLE),
                      "nothing is in flight and nobody has a row");
    }
    if (!transfers.empty() && (step.rows.empty() || dice(2) == 0)) {
      const auto at = transfers.begin() + dice(static_cast<int>(transfers.size()));
      REQUIRE(rig.scheduler.ack(*at, dice(4) != 0));
      transfers.erase(at);
      rig.check();
    }
  }
  CHECK(transfers.empty());
}

}  // namespace

TEST_CASE("in any mix of groups everything finishes in tiny pools, with a host tier too") {
  Dice dice;
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    const int longest = 14;
    Shape any{.max_seqs = 1 + dice(4),
              .max_step_tokens = 4 + dice(8),
              .prefill_share = 0.3,
              .max_wait_steps = dice(4),
              .prefix_cache = dice(5) != 0,
              .groups = any_groups(dice),
              .aging_ms = 10,
              .max_bypass = dice(3)};
    const Layout layout(any.groups);
    any.num_pages = peak_pages(layout, longest, any.max_step_tokens) + dice(4);
    any.host_pages = any.prefix_cache ? dice(2) * dice(20) : 0;
    any.kv_events = dice(2) == 0;
    Rig rig(any);
    const int requests = 2 + dice(8);
    int expected = 0;
    for (int i = 0; i < requests; ++i) {
      const int prompt = 1 + dice(8);
      const int output = 1 + dice(longest + 1 - prompt);
      const Tokens tokens = counting(dice(2), prompt);
      REQUIRE(rig.scheduler
                  .submit({.id = static_cast<RequestId>(i + 1),
                           .tokens = tokens,
                           .max_new_tokens = output,
                           .stop_ids = {},
                           .priority = dice(3) - 1})
                  .rejection == Rejection::ACCEPTED);
      expected += output;
    }
    drive(rig, dice, static_cast<std::size_t>(dice(3)));
    CHECK(rig.scheduler.counters().output_tokens == expected);
    for (int i = 0; i < requests; ++i) {
      CHECK(rig.heard(static_cast<RequestId>(i + 1)).finish == Finish::LENGTH);
    }
    CHECK(rig.scheduler.ledger().active == 0);
    CHECK(rig.scheduler.ledger().in_transfer == 0);
    CHECK(rig.scheduler.reset_prefix_cache());
    CHECK(rig.scheduler.ledger().free == any.num_pages);
  }
}

// A block of 33 pages never fits: nothing is published, and nothing waits to be stored.
TEST_CASE("a block that is larger than the pool comes to an end") {
  Rig rig({.num_pages = 10,
           .max_step_tokens = 8,
           .groups = {{"full", 1, 0}, {"full", 32, 0}},
           .host_pages = 8});
  rig.submit(1, counting(0, 3), 2);
  rig.run_until_idle(20);
  CHECK(rig.heard(1).finish == Finish::LENGTH);
}

// The first group's page is there, the second's is not: the device hears of both with the row.
TEST_CASE("page tables are told with a row, and none is lost when there is no row") {
  Rig rig({.num_pages = 9,
           .max_seqs = 2,
           .max_step_tokens = 8,
           .groups = {{"full", 1, 0}, {"full", 1, 0}}});
  rig.submit(1, counting(0, 2), 3);
  rig.submit(2, counting(50, 1), 3);
  rig.run_until_idle(60);
  CHECK(rig.heard(1).tokens.size() == 3);
  CHECK(rig.heard(2).tokens.size() == 3);
}
