// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <set>

#include "rig.h"

using namespace tokenspeed;
using namespace tokenspeed::test;

namespace {

Shape shape(int num_pages = 16, int host_pages = 8) {
  return {.num_pages = num_pages, .max_step_tokens = 64, .host_pages = host_pages};
}

void run(Rig& rig, RequestId id, const Tokens& prompt) {
  rig.submit(id, prompt, 1);
  rig.run_until_idle();
  REQUIRE(rig.heard(id).finish == Finish::LENGTH);
}

// Takes every device page for a prompt of `tokens` tokens that leaves nothing behind.
void flush_device(Rig& rig, int tokens = 64, RequestId id = 1000) {
  rig.submit(id, counting(5000, tokens), 1);
  const Step step = rig.plan();
  REQUIRE(step.row_of(id) != nullptr);
  REQUIRE(rig.scheduler.abort(id));
  rig.commit(step);
  REQUIRE(rig.scheduler.ledger().free == rig.scheduler.ledger().total);
}

std::vector<PageId> sources(const std::vector<Move>& moves) {
  std::vector<PageId> pages;
  for (const Move& move : moves) pages.push_back(move.source);
  return pages;
}
std::vector<PageId> targets(const std::vector<Move>& moves) {
  std::vector<PageId> pages;
  for (const Move& move : moves) pages.push_back(move.target);
  return pages;
}

// Twelve tokens are on the host, the device is empty, and a request that begins with them comes:
// the plan that admits it.
Step admit_from_host(Rig& rig, RequestId id = 2) {
  run(rig, 1, counting(0, 12));
  flush_device(rig);
  rig.submit(id, counting(0, 12) + Tokens{90}, 2);
  return rig.plan();
}

}  // namespace

// -- to the host --------------------------------------------------------------------------------

TEST_CASE("the full blocks of a request that ends are written through to the host") {
  Rig rig(shape());
  rig.submit(1, counting(0, 10), 1);
  rig.commit(rig.plan());
  CHECK(rig.heard(1).finish == Finish::LENGTH);
  CHECK(rig.scheduler.has_work());
  const Step step = rig.plan();
  CHECK(step.stores == std::vector<Move>{{1, 1, 1}, {1, 2, 2}});  // not the tail
  CHECK(step.summary.blocked == Blocked::TRANSFER);
  CHECK(rig.scheduler.gauges().transfers == 1);
  CHECK(rig.scheduler.ledger().host_in_transfer == 2);
  CHECK(rig.scheduler.ledger().in_transfer == 3);
  CHECK(rig.scheduler.counters().stored_pages == 0);
  CHECK(rig.scheduler.ack(1, true));
  CHECK(rig.scheduler.counters().stored_pages == 2);
  CHECK(rig.scheduler.gauges().transfers == 0);
  CHECK(rig.scheduler.ledger().host_cached == 2);
  CHECK(rig.scheduler.ledger().cached == 3);
  CHECK(!rig.scheduler.has_work());
}

TEST_CASE("while a request runs, blocks go to the host sixteen at a time, each once") {
  Rig rig({.page_size = 2, .num_pages = 64, .max_step_tokens = 64, .host_pages = 64});
  rig.submit(1, counting(0, 30), 8);
  std::set<PageId> stored;
  for (int kv_len = 30; kv_len < 37; ++kv_len) {
    const Step step = rig.run();
    CHECK(step.rows[0].kv_len == kv_len);
    CHECK(step.stores.size() == (kv_len == 33 ? 16 : 0));  // 16 blocks at the commit before
    for (const Move& move : step.stores) CHECK(stored.insert(move.source).second);
  }
  const Step last = rig.run();  // its row, and at the next plan the rest
  CHECK(last.stores.empty());
  const Step rest = rig.plan();
  CHECK(rest.stores.size() == 2);
  for (const Move& move : rest.stores) CHECK(stored.insert(move.source).second);
  rig.ack(rest);
  CHECK(rig.scheduler.ledger().host_cached == 18);
  CHECK(!rig.scheduler.has_work());
}

TEST_CASE("a block that the host has is not stored again") {
  Rig rig(shape());
  run(rig, 1, counting(0, 12));
  rig.submit(2, counting(0, 12) + counting(90, 4), 1);
  rig.commit(rig.plan());
  CHECK(rig.plan().stores.size() == 1);
}

TEST_CASE("a store that failed loses nothing: the device has its pages, the host its room") {
  Rig rig(shape());
  rig.submit(1, counting(0, 12), 1);
  rig.commit(rig.plan());
  rig.ack(rig.plan(), false);
  CHECK(rig.scheduler.counters().failed_transfers == 1);
  CHECK(rig.scheduler.counters().stored_pages == 0);
  CHECK(rig.scheduler.ledger().host_free == 8);
  CHECK(rig.scheduler.ledger().cached == 3);
  run(rig, 2, counting(0, 12) + Tokens{90});
  CHECK(rig.heard(2).cached_tokens == 12);
}

TEST_CASE("blocks whose store failed go to the host with the next request that ends with them") {
  Rig rig(shape());
  rig.submit(1, counting(0, 12), 1);
  rig.commit(rig.plan());
  rig.ack(rig.plan(), false);
  run(rig, 2, counting(0, 12) + counting(90, 4));
  CHECK(rig.scheduler.ledger().host_cached == 4);
}

TEST_CASE("device pages of a store are nobody's until its ack") {
  Rig rig(shape(3));
  rig.submit(1, counting(0, 12), 1);
  rig.commit(rig.plan());
  const Step store = rig.plan();
  REQUIRE(store.stores.size() == 3);
  rig.submit(2, counting(500, 12), 1);
  CHECK(rig.plan().summary.blocked == Blocked::TRANSFER);
  CHECK(rig.scheduler.ledger().in_transfer == 3);
  rig.ack(store);
  CHECK(rig.plan().row_of(2) != nullptr);
}

TEST_CASE("the host gives up what was used least recently, leaves before their parents") {
  Rig rig(shape(16, 4));
  run(rig, 1, counting(100, 8));
  run(rig, 2, counting(200, 8));
  run(rig, 3, counting(100, 8) + Tokens{7});  // the first is used again
  run(rig, 4, counting(300, 8));              // two host pages of the second go
  CHECK(rig.scheduler.counters().host_evictions == 2);
  CHECK(rig.scheduler.ledger().host_cached == 4);
  flush_device(rig);
  run(rig, 5, counting(200, 8) + Tokens{8});
  CHECK(rig.heard(5).cached_tokens == 0);
  Rig other(shape(16, 4));
  run(other, 1, counting(100, 8));
  run(other, 2, counting(200, 8));
  run(other, 3, counting(100, 8) + Tokens{7});
  run(other, 4, counting(300, 4));  // one page: the leaf
  flush_device(other);
  run(other, 5, counting(200, 8) + Tokens{8});
  CHECK(other.heard(5).cached_tokens == 4);
  flush_device(other, 64, 1001);
  run(other, 6, counting(100, 8) + Tokens{8});
  CHECK(other.heard(6).cached_tokens == 8);
}

// -- from the host ------------------------------------------------------------------------------

TEST_CASE("what the device evicts stays on the host, and a hit loads it in the admitting plan") {
  Rig rig(shape());
  const Step admitting = admit_from_host(rig);
  CHECK(sources(admitting.loads) == std::vector<PageId>{1, 2, 3});
  CHECK(admitting.rows.empty());
  CHECK(admitting.summary.blocked == Blocked::TRANSFER);
  CHECK(rig.scheduler.gauges().loading == 1);
  CHECK(rig.scheduler.gauges().waiting == 0);
  CHECK(rig.scheduler.ledger().in_transfer == 3);
  const Step meanwhile = rig.plan();
  CHECK(meanwhile.rows.empty());
  CHECK(meanwhile.loads.empty());
  CHECK(rig.scheduler.ack(admitting.loads[0].transfer, true));
  CHECK(rig.scheduler.gauges().loading == 0);
  const Step first = rig.plan();
  REQUIRE(first.row_of(2) != nullptr);
  CHECK(first.row_of(2)->tokens == Tokens{90});
  CHECK(first.row_of(2)->kv_len == 13);
  CHECK(first.deltas.size() == 4);
  const std::vector<PageId> table = rig.scheduler.page_table(2);
  CHECK(std::vector<PageId>(table.begin(), table.begin() + 3) == targets(admitting.loads));
  rig.commit(first);
  CHECK(rig.heard(2).cached_tokens == 12);
  CHECK(rig.scheduler.counters().cached_tokens == 12);
  CHECK(rig.scheduler.counters().host_cached_tokens == 12);
  CHECK(rig.scheduler.counters().loaded_pages == 3);
  CHECK(rig.scheduler.ledger().host_cached == 3);  // inclusive: the host keeps its copies
  rig.run_until_idle();
}

TEST_CASE("only what the device lacks is loaded") {
  Rig rig(shape(6));
  run(rig, 1, counting(0, 12));
  run(rig, 2, counting(500, 20));  // evicts the two blocks behind the first
  REQUIRE(rig.scheduler.counters().evictions == 2);
  rig.submit(3, counting(0, 12) + Tokens{90}, 1);
  const Step step = rig.plan();
  CHECK(sources(step.loads) == std::vector<PageId>{2, 3});
  CHECK(rig.scheduler.page_table(3)[0] == 1);
  rig.ack(step);
  rig.run_until_idle();
  CHECK(rig.heard(3).cached_tokens == 12);
  CHECK(rig.scheduler.counters().host_cached_tokens == 8);
}

TEST_CASE("others go on while one loads") {
  Rig rig(shape());
  run(rig, 1, counting(0, 12));
  flush_device(rig);
  rig.submit(2, counting(0, 12) + Tokens{90}, 1);
  rig.submit(3, counting(700, 5), 3);
  const Step step = rig.plan();
  CHECK(step.loads.size() == 3);
  CHECK(step.row_of(2) == nullptr);
  CHECK(step.row_of(3) != nullptr);
  rig.commit(step);
  const Step next = rig.plan();
  CHECK(next.row_of(3) != nullptr);
  rig.commit(next);
  rig.ack(step);
  CHECK(rig.plan().row_of(2) != nullptr);
}

TEST_CASE("what is on its way is not loaded twice: the next one waits for it and shares it") {
  Rig rig(shape());
  const Step step = admit_from_host(rig);
  rig.submit(3, counting(0, 12) + Tokens{91}, 1);
  CHECK(rig.plan().loads.empty());
  rig.ack(step);
  const Step both = rig.plan();
  CHECK(both.row_of(2) != nullptr);
  REQUIRE(both.row_of(3) != nullptr);
  CHECK(both.row_of(3)->count == 1);
  CHECK(rig.scheduler.page_table(2)[0] == rig.scheduler.page_table(3)[0]);
  rig.commit(both);
  rig.run_until_idle();
  CHECK(rig.scheduler.counters().loaded_pages == 3);
}

TEST_CASE("after a failed load the host's copy is dropped, and the request waits and finishes") {
  Rig rig(shape());
  const Step step = admit_from_host(rig);
  CHECK(rig.scheduler.ack(step.loads[0].transfer, false));
  CHECK(rig.scheduler.counters().failed_transfers == 1);
  CHECK(rig.scheduler.gauges().waiting == 1);
  CHECK(rig.scheduler.ledger().host_free == 8);
  CHECK(rig.scheduler.ledger().free == 16);
  const Step again = rig.plan();
  CHECK(again.loads.empty());
  REQUIRE(again.row_of(2) != nullptr);
  CHECK(again.row_of(2)->count == 13);
  rig.commit(again);
  rig.run_until_idle();
  CHECK(rig.heard(2).finish == Finish::LENGTH);
}

TEST_CASE("tokens that a failed load did not bring are not called cached") {
  Rig rig(shape());
  const Step step = admit_from_host(rig);
  rig.ack(step, false);
  rig.run_until_idle();
  CHECK(rig.heard(2).cached_tokens == 0);
  CHECK(rig.scheduler.counters().cached_tokens == 0);
  CHECK(rig.scheduler.counters().host_cached_tokens == 0);
}

TEST_CASE("of a failed load, what the device had is still a hit") {
  Rig rig(shape(6));
  run(rig, 1, counting(0, 12));
  run(rig, 2, counting(500, 20));
  rig.submit(3, counting(0, 12) + Tokens{90}, 1);
  const Step step = rig.plan();
  REQUIRE(step.loads.size() == 2);
  rig.ack(step, false);
  const Step again = rig.plan();
  REQUIRE(again.row_of(3) != nullptr);
  CHECK(again.row_of(3)->count == 9);
  rig.commit(again);
}

TEST_CASE("a request that is aborted or expires while it loads leaves its pages to the transfer") {
  for (const bool ok : {true, false}) {
    for (const bool abort : {true, false}) {
      CAPTURE(ok);
      CAPTURE(abort);
      Rig rig(shape());
      run(rig, 1, counting(0, 12));
      flush_device(rig);
      rig.submit(2, counting(0, 12) + Tokens{90}, 2, {}, abort ? 0 : 50);
      const Step step = rig.plan();
      REQUIRE(step.loads.size() == 3);
      if (abort) {
        CHECK(rig.scheduler.abort(2));
      } else {
        CHECK(rig.plan(50).rows.empty());
      }
      CHECK(rig.heard(2).finish == (abort ? Finish::ABORTED : Finish::EXPIRED));
      CHECK(rig.scheduler.ledger().active == 0);
      CHECK(rig.scheduler.ledger().in_transfer == 3);
      CHECK(rig.scheduler.ledger().free == 13);
      CHECK(rig.scheduler.has_work());
      CHECK(rig.scheduler.ack(step.loads[0].transfer, ok));
      CHECK(rig.scheduler.ledger().in_transfer == 0);
      CHECK(rig.scheduler.ledger().cached == (ok ? 3 : 0));
      CHECK(rig.scheduler.ledger().host_cached == (ok ? 3 : 0));
      rig.run_until_idle();
      run(rig, 3, counting(0, 12) + Tokens{90});
      CHECK(rig.heard(3).cached_tokens == (ok ? 12 : 0));
    }
  }
}

TEST_CASE("the ack of a load never reaches the request that came in its place") {
  Rig rig(shape());
  const Step step = admit_from_host(rig);
  CHECK(rig.scheduler.abort(2));
  CHECK(rig.heard(2).finish == Finish::ABORTED);
  rig.submit(3, counting(0, 12) + Tokens{91}, 2);  // in the same record, for the same pages
  CHECK(rig.plan().rows.empty());
  CHECK(rig.scheduler.ack(step.loads[0].transfer, false));
  CHECK(rig.scheduler.gauges().waiting == 1);
  rig.run_until_idle();
  CHECK(rig.heard(3).finish == Finish::LENGTH);
  CHECK(rig.heard(3).cached_tokens == 0);
}

// -- both ways ----------------------------------------------------------------------------------

TEST_CASE("late, duplicate and unknown acks are legal, counted, and change nothing") {
  Rig rig(shape());
  rig.submit(1, counting(0, 12), 1);
  rig.commit(rig.plan());
  const Step step = rig.plan();
  CHECK(!rig.scheduler.ack(step.stores[0].transfer + 1, true));
  CHECK(rig.scheduler.ledger().host_in_transfer == 3);
  CHECK(rig.scheduler.ack(step.stores[0].transfer, true));
  const Ledger before = rig.scheduler.ledger();
  for (const TransferId id : {TransferId{0}, step.stores[0].transfer, TransferId{999}}) {
    for (const bool ok : {true, false}) {
      CHECK(!rig.scheduler.ack(id, ok));
      CHECK(rig.scheduler.ledger().detail == before.detail);
    }
  }
  CHECK(rig.scheduler.counters().ignored_events == 7);
  CHECK(rig.scheduler.counters().failed_transfers == 0);
}

TEST_CASE("acks may come in any order") {
  Rig rig(shape(16, 12));
  rig.submit(1, counting(0, 4), 1);
  rig.submit(2, counting(100, 8), 1);
  rig.commit(rig.plan());
  const Step step = rig.plan();
  REQUIRE(step.stores.size() == 3);
  REQUIRE(rig.scheduler.gauges().transfers == 2);
  CHECK(rig.scheduler.ack(step.stores[1].transfer, true));
  CHECK(rig.scheduler.ledger().host_cached == 2);
  CHECK(rig.scheduler.ack(step.stores[0].transfer, true));
  CHECK(rig.scheduler.ledger().host_cached == 3);
}

TEST_CASE("the cache is not dropped while a transfer is in flight, and then on both tiers") {
  Rig rig(shape());
  rig.submit(1, counting(0, 12), 1);
  rig.commit(rig.plan());
  CHECK(!rig.scheduler.reset_prefix_cache());  // not yet stored
  const Step step = rig.plan();
  CHECK(!rig.scheduler.reset_prefix_cache());
  rig.ack(step);
  CHECK(rig.scheduler.reset_prefix_cache());
  CHECK(rig.scheduler.ledger().free == 16);
  CHECK(rig.scheduler.ledger().host_free == 8);
}

TEST_CASE("a victim's full blocks go to the host, and it comes back from there") {
  Rig rig({.page_size = 2, .num_pages = 8, .host_pages = 32});
  rig.submit(1, counting(0, 4), 10);
  rig.submit(2, counting(100, 4), 8);
  Step step;
  for (int i = 0; rig.scheduler.counters().retractions == 0; ++i) {
    REQUIRE(i < 20);
    step = rig.plan();
    rig.commit(step);
  }
  CHECK(!step.stores.empty());  // in the plan that retracted it
  CHECK(rig.scheduler.counters().retractions_to_host == 1);
  rig.ack(step);
  rig.run_until_idle();
  CHECK(rig.heard(1).tokens.size() == 10);
  CHECK(rig.heard(2).tokens.size() == 8);
  CHECK(rig.scheduler.counters().loaded_pages > 0);
}

TEST_CASE("a retraction that the host has no room for is not counted as one to the host") {
  Rig rig({.page_size = 2, .num_pages = 8, .host_pages = 1});
  rig.submit(1, counting(0, 4), 10);
  rig.submit(2, counting(100, 4), 8);
  rig.run_until_idle();
  CHECK(rig.scheduler.counters().retractions > 0);
  CHECK(rig.scheduler.counters().retractions_to_host == 0);
  CHECK(rig.heard(2).tokens.size() == 8);
}

TEST_CASE("every part that a hit needs is loaded: full pages, the window and the checkpoint") {
  Rig rig({.num_pages = 23,
           .max_step_tokens = 64,
           .groups = {{"full", 4, 0}, {"sliding", 4, 5}, {"state", 4, 0}},
           .host_pages = 24});
  run(rig, 1, counting(0, 12));
  const int on_host = rig.scheduler.ledger().host_cached;
  CHECK(on_host == 3 + 1 + 1);  // three full pages, the last one of the window, one state
  flush_device(rig, 44);  // 11 pages of either group, and a state
  rig.submit(2, counting(0, 12) + Tokens{90}, 1);
  const Step step = rig.plan();
  CHECK(step.loads.size() == 5);
  rig.ack(step);
  const Step first = rig.plan();
  REQUIRE(first.row_of(2) != nullptr);
  CHECK(first.row_of(2)->count == 1);
  CHECK(first.copies.size() == 1);  // of the loaded checkpoint
  rig.commit(first);
  CHECK(rig.heard(2).cached_tokens == 12);
}

TEST_CASE("without a prefix cache there is no host tier") {
  CHECK_THROWS(Rig({.prefix_cache = false, .host_pages = 4}));
}
