// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <array>
#include <set>
#include <utility>

#include "fsm/machine.h"
#include "fsm/results.h"

using namespace tokenspeed;
using namespace tokenspeed::fsm;

namespace {

// A toy table: the machinery must tell a trap from a way out.
struct Red {
  static constexpr std::string_view name = "Red";
};
struct Green {
  static constexpr std::string_view name = "Green";
};
struct Trap {
  static constexpr std::string_view name = "Trap";
};
struct Go {
  static constexpr std::string_view name = "Go";
};
struct Kill {
  static constexpr std::string_view name = "Kill";
};
using Toy = Table<On<Go, Kill>,                       //
                  From<Red, to<Green>, to<Trap>>,     //
                  From<Green, ignore, to<Trap>>,      //
                  From<Trap, reject, to<Green>>>;
static_assert(Toy::every_state_reachable_from<Red>());
static_assert(!Toy::every_state_reachable_from<Green>());
static_assert(Toy::reachable_from_every_state_without<Green>());
static_assert(!Toy::reachable_from_every_state_without<Green, Kill>());
static_assert(std::is_same_v<Toy::outcome<Green, Go>, ignore>);
static_assert(std::is_same_v<Toy::outcome<Trap, Kill>, to<Green>>);

// A request with a prompt of two pages of one token, brought into any state.
struct Bench {
  Config config = [] {
    Config made;
    made.groups = {{"full", 1, 0}};
    made.num_pages = 8;
    made.max_seqs = 1;
    return made;
  }();
  Layout layout{config.groups};
  Counters counters;
  KvCache cache{config, layout, counters};
  Transfers transfers{cache, counters, 1};
  SlotPool slots{1};
  PageHasher hasher{1};
  UpdateLog updates;
  Effects fx{hasher, cache, transfers, updates, counters};
  Request request;

  Bench() {
    updates.make_room(100);
    request.prompt_len = 2;
    request.max_new_tokens = 3;
    request.tokens.reserve(5);
    request.tokens = {8, 9};
    request.keys.reserve(5);
    hasher.extend(0, request.tokens, request.keys);
  }

  Reservation reserve() {
    Reservation reservation(slots.take(), cache.tree()->pin(Match{}, 5), layout, 5);
    reservation.append(0, cache.take_page());
    reservation.append(0, cache.take_page());
    return reservation;
  }
  Reservation reserve_if_possible() {
    return slots.free() > 0 ? reserve() : Reservation(Slot{}, TreePin{}, layout, 0);
  }

  template <class S>
  void enter() {
    if constexpr (std::is_same_v<S, Draining>) {
      request.state = Draining{reserve(), Finish::STOP};
    } else if constexpr (std::is_same_v<S, Finished>) {
      request.state = Finished(Finish::STOP);
    } else if constexpr (!std::is_same_v<S, Waiting>) {
      request.state = S{reserve()};
    }
  }

  template <class E>
  E make() {
    static constexpr std::array<TokenId, 1> kToken{7};
    if constexpr (std::is_same_v<E, Admit>) {
      return {reserve_if_possible(), 0};
    } else if constexpr (std::is_same_v<E, Load>) {
      return {reserve_if_possible(), 0, 0, {}};
    } else if constexpr (std::is_same_v<E, ChunkDone>) {
      return {1};
    } else if constexpr (std::is_same_v<E, Stopped>) {
      return {2, kToken, Finish::STOP};
    } else if constexpr (std::is_same_v<E, PromptDone> || std::is_same_v<E, fsm::Token>) {
      return {2, kToken};
    } else {
      return {};
    }
  }
};

template <class S, class E>
void check_cell() {
  Bench bench;
  bench.enter<S>();
  const TableRow row = Transitions::rows[Transitions::state_index<S> * Transitions::num_events +
                                         Transitions::event_index<E>];
  CAPTURE(S::name);
  CAPTURE(E::name);
  CHECK(step(bench.request, bench.make<E>(), bench.fx) == row.kind);
  CHECK(bench.request.state.index() == row.next);
  CHECK(bench.counters.ignored_events == (row.kind == OutcomeKind::IGNORE ? 1 : 0));
  CHECK(bench.counters.rejected_events == (row.kind == OutcomeKind::REJECT ? 1 : 0));
  // Whatever happened: who owns nothing has given everything back.
  const bool owns = reservation_of(bench.request.state) != nullptr;
  CHECK(bench.slots.free() == (owns ? 0 : 1));
  CHECK((bench.cache.available_pages() == 8) == !owns);
}

template <class S>
void check_line() {
  check_cell<S, Admit>();
  check_cell<S, Load>();
  check_cell<S, Loaded>();
  check_cell<S, LoadFailed>();
  check_cell<S, ChunkDone>();
  check_cell<S, PromptDone>();
  check_cell<S, fsm::Token>();
  check_cell<S, Stopped>();
  check_cell<S, Fail>();
  check_cell<S, Abort>();
  check_cell<S, Expire>();
  check_cell<S, Retract>();
  check_cell<S, Drained>();
}

}  // namespace

TEST_CASE("every state does with every event what the table says") {
  check_line<Waiting>();
  check_line<Loading>();
  check_line<Prefill>();
  check_line<Decode>();
  check_line<Retracting>();
  check_line<Draining>();
  check_line<Finished>();
}

TEST_CASE("the table has every pair once") {
  std::set<std::pair<std::size_t, std::size_t>> pairs;
  for (const TableRow& row : Transitions::rows) pairs.insert({row.state, row.event});
  CHECK(pairs.size() == Transitions::num_states * Transitions::num_events);
}

TEST_CASE("every result is one event") {
  Request request;
  request.prompt_len = 2;
  request.max_new_tokens = 3;
  request.stop_ids = {50};
  request.tokens = {1, 2};
  const RowRecord chunk{&request, 1, false, false};
  const RowRecord last_chunk{&request, 2, true, false};
  const RowRecord decode{&request, 3, true, true};
  const auto is = [](const ResultEvent& event, auto kind) {
    return std::holds_alternative<decltype(kind)>(event);
  };
  const std::array<TokenId, 1> token{4}, stop{50}, none{-1};
  CHECK(is(to_event(chunk, {false, {}}), ChunkDone{}));
  CHECK(is(to_event(chunk, {true, {}}), Fail{}));
  CHECK(is(to_event(last_chunk, {false, token}), PromptDone{}));
  CHECK(is(to_event(last_chunk, {false, stop}), Stopped{}));
  CHECK(is(to_event(last_chunk, {false, none}), Fail{}));
  CHECK(is(to_event(decode, {false, token}), fsm::Token{}));
  request.tokens = {1, 2, 3, 4};
  const ResultEvent at_limit = to_event(decode, {false, token});
  REQUIRE(is(at_limit, Stopped{}));
  CHECK(std::get<Stopped>(at_limit).finish == Finish::LENGTH);
  CHECK(std::get<Stopped>(to_event(decode, {false, stop})).finish == Finish::STOP);
}

TEST_CASE("of a row that returns several tokens, those after the end count for nothing") {
  Request request;
  request.prompt_len = 2;
  request.max_new_tokens = 5;
  request.stop_ids = {50};
  request.tokens = {1, 2, 3};
  request.computed = 2;
  const RowRecord decode{&request, 3, true, true};
  const std::array<TokenId, 3> all{4, 5, 6}, stopped{4, 50, 6}, bad{4, 50, -1};
  const ResultEvent goes_on = to_event(decode, {false, all});
  REQUIRE(std::holds_alternative<fsm::Token>(goes_on));
  CHECK(std::get<fsm::Token>(goes_on).kv_len == 5);
  const ResultEvent stops = to_event(decode, {false, stopped});
  REQUIRE(std::holds_alternative<Stopped>(stops));
  CHECK(std::get<Stopped>(stops).finish == Finish::STOP);
  CHECK(std::get<Stopped>(stops).kv_len == 4);
  CHECK(std::get<Stopped>(stops).tokens.size() == 2);
  CHECK(std::holds_alternative<Fail>(to_event(decode, {false, bad})));
  request.max_new_tokens = 3;  // two more
  const ResultEvent at_limit = to_event(decode, {false, all});
  REQUIRE(std::holds_alternative<Stopped>(at_limit));
  CHECK(std::get<Stopped>(at_limit).finish == Finish::LENGTH);
  CHECK(std::get<Stopped>(at_limit).tokens.size() == 2);
}
