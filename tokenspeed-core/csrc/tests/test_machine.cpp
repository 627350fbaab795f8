// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

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
  PagePool pages{8};
  PrefixTree tree{pages, 1};
  SlotPool slots{1};
  PageHasher hasher{1};
  UpdateLog updates;
  Counters counters;
  Effects fx{1, hasher, &tree, updates, counters};
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
    Reservation reservation(slots.take(), tree.pin(Match{}), 5);
    reservation.append(pages.take());
    reservation.append(pages.take());
    return reservation;
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
    if constexpr (std::is_same_v<E, Admit>) {
      return {slots.free() > 0 ? reserve() : Reservation(Slot{}, TreePin{}, 0)};
    } else if constexpr (std::is_same_v<E, ChunkDone>) {
      return {1};
    } else if constexpr (std::is_same_v<E, Stopped>) {
      return {2, 7, Finish::STOP};
    } else if constexpr (std::is_same_v<E, PromptDone> || std::is_same_v<E, fsm::Token>) {
      return {2, 7};
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
  CHECK((bench.pages.free() + bench.tree.evictable() == 8) == !owns);
}

template <class S>
void check_line() {
  check_cell<S, Admit>();
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
  CHECK(is(to_event(chunk, {false, -1}), ChunkDone{}));
  CHECK(is(to_event(chunk, {true, 0}), Fail{}));
  CHECK(is(to_event(last_chunk, {false, 4}), PromptDone{}));
  CHECK(is(to_event(last_chunk, {false, 50}), Stopped{}));
  CHECK(is(to_event(last_chunk, {false, -1}), Fail{}));
  CHECK(is(to_event(decode, {false, 4}), fsm::Token{}));
  request.tokens = {1, 2, 3, 4};
  const ResultEvent at_limit = to_event(decode, {false, 4});
  REQUIRE(is(at_limit, Stopped{}));
  CHECK(std::get<Stopped>(at_limit).finish == Finish::LENGTH);
  CHECK(std::get<Stopped>(to_event(decode, {false, 50})).finish == Finish::STOP);
}
