// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <map>

#include "rig.h"

using namespace tokenspeed;
using namespace tokenspeed::test;

namespace {

struct Event {
  KvEvent kind;
  Tier tier;
  int group;
  PageKey block;
  PageKey parent;
  Namespace ns;
  Tokens tokens;
};

std::vector<Event> take(Rig& rig) {
  const KvEventColumns columns = rig.scheduler.take_kv_events();
  std::vector<Event> events;
  for (std::size_t i = 0; i < columns.kind.size(); ++i) {
    events.push_back({static_cast<KvEvent>(columns.kind[i]), static_cast<Tier>(columns.tier[i]),
                      columns.group[i], columns.block[i], columns.parent[i], columns.ns[i],
                      Tokens(columns.tokens.begin() + columns.token_start[i],
                             columns.tokens.begin() + columns.token_start[i + 1])});
  }
  return events;
}

Shape shape() { return {.kv_events = true}; }

void run(Rig& rig, RequestId id, const Tokens& prompt, Namespace ns = 0) {
  rig.submit(id, prompt, 1, {}, 0, ns);
  rig.run_until_idle();
}

}  // namespace

TEST_CASE("a block is stored after its parent, with its own tokens") {
  Rig rig(shape());
  run(rig, 1, counting(0, 12), 7);
  const std::vector<Event> events = take(rig);
  REQUIRE(events.size() == 3);
  PageKey parent = 0;
  for (int i = 0; i < 3; ++i) {
    const Event& event = events[static_cast<std::size_t>(i)];
    CHECK(event.kind == KvEvent::STORED);
    CHECK(event.tier == Tier::DEVICE);
    CHECK(event.group == 0);
    CHECK(event.ns == 7);
    CHECK(event.parent == parent);
    CHECK(event.tokens == counting(i * 4, 4));
    parent = event.block;
  }
  CHECK(take(rig).empty());
}

TEST_CASE("a fork hangs on the block that both share, which is not stored again") {
  Rig rig(shape());
  run(rig, 1, counting(0, 8));
  const std::vector<Event> first = take(rig);
  run(rig, 2, counting(0, 4) + counting(90, 4));
  const std::vector<Event> fork = take(rig);
  REQUIRE(fork.size() == 1);
  CHECK(fork[0].parent == first[0].block);
  CHECK(fork[0].block != first[1].block);
  CHECK(fork[0].tokens == counting(90, 4));
}

TEST_CASE("equal prompts that run side by side store each block once") {
  Rig rig({.max_step_tokens = 32, .max_wait_steps = 0, .kv_events = true});
  rig.submit(1, counting(0, 8), 3);
  rig.submit(2, counting(0, 8), 3);
  rig.run_until_idle();
  CHECK(take(rig).size() == 2);
}

TEST_CASE("a tail is no event, neither when it is left nor when it is adopted or evicted") {
  Rig rig(shape());
  run(rig, 1, counting(0, 6));
  CHECK(take(rig).size() == 1);
  run(rig, 2, counting(0, 6) + Tokens{90});
  CHECK(rig.scheduler.counters().adoptions == 1);
  CHECK(take(rig).empty());
  rig.submit(3, counting(500, 60), 1);
  const Step step = rig.plan();  // evicts the tail, not the block
  CHECK(rig.scheduler.counters().evictions == 1);
  CHECK(take(rig).empty());
  CHECK(rig.scheduler.abort(3));
  rig.commit(step);
}

TEST_CASE("an evicted block is removed, children first, without tokens") {
  Rig rig(shape());
  run(rig, 1, counting(0, 8));
  const std::vector<Event> stored = take(rig);
  REQUIRE(stored.size() == 2);
  rig.submit(2, counting(500, 64), 1);
  const Step step = rig.plan();
  const std::vector<Event> removed = take(rig);
  REQUIRE(removed.size() == 2);
  for (std::size_t i : {0u, 1u}) {
    CHECK(removed[i].kind == KvEvent::REMOVED);
    CHECK(removed[i].tier == Tier::DEVICE);
    CHECK(removed[i].block == stored[1 - i].block);
    CHECK(removed[i].tokens.empty());
  }
  CHECK(rig.scheduler.abort(2));
  rig.commit(step);
}

TEST_CASE("each tier has its own events: stored at the ack, removed when it gives the block up") {
  Rig rig({.host_pages = 3, .kv_events = true});
  rig.submit(1, counting(0, 8), 1);
  rig.commit(rig.plan());
  const std::vector<Event> device = take(rig);
  REQUIRE(device.size() == 2);
  const Step store = rig.plan();
  CHECK(take(rig).empty());
  rig.ack(store);
  const std::vector<Event> host = take(rig);
  REQUIRE(host.size() == 2);
  for (std::size_t i : {0u, 1u}) {
    CHECK(host[i].kind == KvEvent::STORED);
    CHECK(host[i].tier == Tier::HOST);
    CHECK(host[i].block == device[i].block);
    CHECK(host[i].parent == device[i].parent);
    CHECK(host[i].tokens == device[i].tokens);
  }
  // Another prompt's two blocks: one free host page, and one of the leaf's.
  rig.submit(2, counting(100, 8), 1);
  rig.commit(rig.plan());
  take(rig);
  const Step second = rig.plan();
  const std::vector<Event> evicted = take(rig);
  REQUIRE(evicted.size() == 1);
  CHECK(evicted[0].kind == KvEvent::REMOVED);
  CHECK(evicted[0].tier == Tier::HOST);
  CHECK(evicted[0].block == device[1].block);
  rig.ack(second);
}

TEST_CASE("a loaded block is stored on the device again, with its parent before it") {
  Rig rig({.num_pages = 4, .host_pages = 8, .kv_events = true});
  run(rig, 1, counting(0, 12));
  rig.submit(2, counting(500, 16), 1);
  const Step flush = rig.plan();
  CHECK(rig.scheduler.abort(2));
  rig.commit(flush);
  take(rig);
  rig.submit(3, counting(0, 12) + Tokens{90}, 1);
  const Step load = rig.plan();
  REQUIRE(load.loads.size() == 3);
  CHECK(take(rig).empty());
  rig.ack(load);
  const std::vector<Event> events = take(rig);
  REQUIRE(events.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(events[i].kind == KvEvent::STORED);
    CHECK(events[i].tier == Tier::DEVICE);
    CHECK(events[i].tokens == counting(static_cast<int>(i) * 4, 4));
    CHECK(events[i].parent == (i == 0 ? 0 : events[i - 1].block));
  }
  rig.run_until_idle();
}

TEST_CASE("a group goes by its number in the config; groups that go together by the first") {
  Rig rig({.num_pages = 32,
           .groups = {{"sliding", 4, 8}, {"full", 4, 0}, {"full", 2, 0}},
           .kv_events = true});
  run(rig, 1, counting(0, 4));
  const std::vector<Event> events = take(rig);
  REQUIRE(events.size() == 2);
  CHECK(events[0].group == 1);  // the full groups
  CHECK(events[1].group == 0);
  CHECK(events[0].block == events[1].block);
}

TEST_CASE("without a full group there is no chain of blocks, and no events") {
  Rig rig({.groups = {{"sliding", 4, 8}}, .kv_events = true});
  run(rig, 1, counting(0, 12));
  CHECK(rig.scheduler.ledger().cached == 3);
  CHECK(take(rig).empty());
}

TEST_CASE("a reset says that nothing is cached, and forgets what was not taken") {
  Rig rig(shape());
  run(rig, 1, counting(0, 12));
  CHECK(rig.scheduler.reset_prefix_cache());
  const std::vector<Event> events = take(rig);
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == KvEvent::CLEARED);
  CHECK(events[0].tokens.empty());
  run(rig, 2, counting(0, 4));
  const std::vector<Event> after = take(rig);
  REQUIRE(after.size() == 1);
  CHECK(after[0].kind == KvEvent::STORED);
  CHECK(after[0].parent == 0);
}

// Who does not take them in time is told to forget all, and then all that is resident.
TEST_CASE("a log that overflows starts anew with cleared and what is resident") {
  const int count = 9000;
  Rig rig({.page_size = 1,
           .num_pages = count,
           .max_step_tokens = count,
           .kv_events = true},
          count + 1);
  run(rig, 1, counting(0, count));
  const std::vector<Event> events = take(rig);
  REQUIRE(events.size() == 1 + static_cast<std::size_t>(count));
  CHECK(events[0].kind == KvEvent::CLEARED);
  PageKey parent = 0;
  for (std::size_t i = 1; i < events.size(); ++i) {
    CHECK(events[i].kind == KvEvent::STORED);
    CHECK(events[i].tokens == Tokens{static_cast<TokenId>(i) - 1});
    CHECK(events[i].parent == parent);
    parent = events[i].block;
  }
  CHECK(take(rig).empty());
}

// Two branches and both tiers: a block comes before its children, once for each tier.
TEST_CASE("what is resident is told parents first, per tier") {
  Rig rig({.page_size = 1,
           .num_pages = 9000,
           .max_step_tokens = 9000,
           .host_pages = 64,
           .kv_events = true},
          9001);
  run(rig, 1, Tokens{1, 2, 3});
  run(rig, 2, Tokens{1, 2, 4});
  rig.run_until_idle();
  run(rig, 3, counting(100, 8900));
  const std::vector<Event> events = take(rig);
  REQUIRE(events[0].kind == KvEvent::CLEARED);
  std::map<PageKey, int> told;
  for (std::size_t i = 1; i < events.size(); ++i) {
    CHECK(events[i].kind == KvEvent::STORED);
    CHECK((events[i].parent == 0 || told.count(events[i].parent) == 1));
    told[events[i].block] += 1;
  }
  CHECK(told.size() == static_cast<std::size_t>(rig.scheduler.ledger().cached));
}

TEST_CASE("nothing is logged when nobody asked for it") {
  Rig rig;
  run(rig, 1, counting(0, 12));
  CHECK(rig.scheduler.reset_prefix_cache());
  CHECK(take(rig).empty());
}
