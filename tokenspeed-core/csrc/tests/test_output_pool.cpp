// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "drafts/output_pool.h"

using namespace tokenspeed;
using namespace tokenspeed::drafts;

namespace {

using Tokens = std::vector<TokenId>;
constexpr std::size_t kBytes = 64 * 20;  // a ring of 64

struct Found {
  std::size_t length = 0;
  std::vector<Tokens> follows;
  bool operator==(const Found&) const = default;
};

Found find(const OutputPool& pool, Namespace ns, const Tokens& text, std::size_t most = 4) {
  Tokens room(OutputPool::kLooks * most);
  Matches matches;
  pool.find(ns, text, most, room, matches);
  Found found{matches.length(), {}};
  for (const Match& match : matches.all()) {
    found.follows.emplace_back(match.follows.begin(), match.follows.end());
  }
  return found;
}

Tokens numbers(TokenId first, std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

}  // namespace

TEST_CASE("what followed is found in outputs of the namespace alone") {
  OutputPool pool(1 << 16);
  pool.add(1, {{1, 2, 3, 4, 5}});
  CHECK(find(pool, 1, {9, 1, 2, 3}) == Found{3, {{4, 5}}});
  CHECK(find(pool, 2, {9, 1, 2, 3}) == Found{});
  pool.add(2, {{1, 2, 3, 7, 8}});
  CHECK(find(pool, 1, {9, 1, 2, 3}) == Found{3, {{4, 5}}});
  CHECK(find(pool, 2, {9, 1, 2, 3}) == Found{3, {{7, 8}}});
}

TEST_CASE("neither a match nor what follows goes across the end of an output") {
  OutputPool pool(1 << 16);
  pool.add(1, numbers(1, 5));
  pool.add(1, numbers(6, 5));
  CHECK(find(pool, 1, {4, 5, 6}) == Found{});
  CHECK(find(pool, 1, {5, 6}) == Found{});
  CHECK(find(pool, 1, {2, 3, 4}) == Found{3, {{5}}});
  CHECK(find(pool, 1, {3, 4, 5}) == Found{});
  CHECK(find(pool, 1, {5, 6, 7, 8}) == Found{3, {{9, 10}}});
}

TEST_CASE("the latest output comes first, the longest match alone stays") {
  OutputPool pool(1 << 16);
  pool.add(1, {{5, 1, 2, 3, 10}});
  pool.add(1, {{6, 1, 2, 3, 11}});
  pool.add(1, {{7, 1, 2, 3, 12}});
  CHECK(find(pool, 1, {8, 1, 2, 3}) == Found{3, {{12}, {11}, {10}}});
  CHECK(find(pool, 1, {6, 1, 2, 3}) == Found{4, {{11}}});
}

TEST_CASE("the ring keeps to its bytes: the oldest go first") {
  OutputPool pool(kBytes);
  REQUIRE(pool.capacity() == 64);
  pool.add(1, numbers(100, 31));
  pool.add(1, numbers(200, 31));
  CHECK(find(pool, 1, {100, 101, 102}).length == 3);
  pool.add(1, numbers(300, 15));
  CHECK(find(pool, 1, {100, 101, 102}) == Found{});
  CHECK(find(pool, 1, {125, 126, 127}) == Found{3, {{128, 129, 130}}});  // what is left of it
  CHECK(find(pool, 1, {200, 201, 202}).length == 3);
  CHECK(find(pool, 1, {300, 301, 302}).length == 3);
}

TEST_CASE("of an output that is larger than the ring its end stays") {
  OutputPool pool(kBytes);
  pool.add(1, numbers(0, 1000));
  CHECK(find(pool, 1, {930, 931, 932}) == Found{});
  CHECK(find(pool, 1, {936, 937, 938}) == Found{2, {{939, 940, 941, 942}}});
  CHECK(find(pool, 1, {937, 938, 939}) == Found{3, {{940, 941, 942, 943}}});
  CHECK(find(pool, 1, {996, 997, 998}) == Found{3, {{999}}});
}

TEST_CASE("many rounds of the ring leave no stale match") {
  OutputPool pool(kBytes);
  for (TokenId round = 0; round < 500; ++round) {
    pool.add(1, {{1, 2, 3, 1000 + round, 7, 8}});
    const Found found = find(pool, 1, {1, 2, 3}, 1);
    REQUIRE(found.follows.front() == Tokens{1000 + round});
    // Seven places each: as many as are whole in the ring.
    CHECK(found.follows.size() == std::min<std::size_t>(round + 1, 9));
    CHECK(found.follows.back() == Tokens{std::max(1000, 1000 + round - 8)});
  }
}

TEST_CASE("past 2^32 tokens an output's end, which nothing follows, hides no match") {
  constexpr OutputPool::Position kTurn = std::uint64_t{1} << 32;
  for (OutputPool::Position early = 1; early < 40; ++early) {
    CAPTURE(early);
    OutputPool pool(kBytes, kTurn - early);
    pool.add(1, numbers(1, 8));
    pool.add(1, numbers(21, 8));
    pool.add(1, numbers(41, 8));
    const Tokens said{50};
    for (const Tokens& text : {Tokens{6, 7, 8}, Tokens{26, 27, 28}, Tokens{46, 47, 48}}) {
      CHECK(find(pool, 1, text) == Found{});
      Tokens room(OutputPool::kLooks * 4);
      Matches matches;
      matches.add({2, said});
      pool.find(1, text, 4, room, matches);
      CHECK(matches.length() == 2);
      CHECK(matches.all().size() == 1);
    }
    CHECK(find(pool, 1, {4, 5, 6}) == Found{3, {{7, 8}}});
    CHECK(find(pool, 1, {44, 45, 46}) == Found{3, {{47, 48}}});
  }
}

TEST_CASE("without room nothing is kept") {
  for (const std::size_t bytes : {std::size_t{0}, kBytes - 20}) {
    OutputPool pool(bytes);
    CHECK(pool.capacity() == 0);
    pool.add(1, numbers(0, 30));
    CHECK(find(pool, 1, {0, 1, 2}) == Found{});
  }
}

TEST_CASE("short texts and outputs are no matter") {
  OutputPool pool(kBytes);
  pool.add(1, {});
  pool.add(1, {{1, 2}});
  CHECK(find(pool, 1, {}) == Found{});
  CHECK(find(pool, 1, {2}) == Found{});
  CHECK(find(pool, 1, {1, 2}) == Found{});
}
