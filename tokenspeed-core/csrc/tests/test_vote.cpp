// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "drafts/vote.h"

using namespace tokenspeed;
using namespace tokenspeed::drafts;

namespace {

using Tokens = std::vector<TokenId>;

Tokens guess(const std::vector<Tokens>& follows, std::size_t length, std::size_t most = 64) {
  Matches matches;
  for (const Tokens& tokens : follows) {
    REQUIRE(matches.wants(length));
    matches.add({length, tokens});
  }
  Tokens said(most);
  said.resize(vote(matches, said));
  return said;
}

Tokens numbers(std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

}  // namespace

TEST_CASE("no match, no guess") { CHECK(guess({}, 3).empty()); }

TEST_CASE("a guess behind one match is about as long as the match, and never longer than asked") {
  // (1 - 1/(length + 1))^n >= 0.4
  CHECK(guess({numbers(64)}, 2) == numbers(2));
  CHECK(guess({numbers(64)}, 3) == numbers(3));
  CHECK(guess({numbers(64)}, 8) == numbers(7));
  CHECK(guess({numbers(64)}, 32) == numbers(29));
  CHECK(guess({numbers(64)}, 32, 5) == numbers(5));
  CHECK(guess({numbers(64)}, 32, 0).empty());
}

TEST_CASE("a guess ends with what is known") {
  CHECK(guess({numbers(2)}, 32) == numbers(2));
  CHECK(guess({{}}, 32).empty());
}

TEST_CASE("more that say the same make it longer") {
  const std::size_t one = guess({numbers(64)}, 3).size();
  const std::size_t four = guess({4, numbers(64)}, 3).size();
  CHECK(four > one);
}

TEST_CASE("most decide, token by token, and those that were outvoted are silent") {
  CHECK(guess({{7, 1}, {5, 2}, {5, 2}, {5, 3}}, 30, 2) == Tokens{5, 2});
  // The second 9 is not counted for what follows 5.
  CHECK(guess({{5, 2}, {9, 4}, {5, 2}, {5, 4}, {9, 4}}, 30, 2) == Tokens{5});
}

TEST_CASE("a draw goes to the first") {
  CHECK(guess({{7, 1}, {5, 2}}, 30, 1) == Tokens{7});
  CHECK(guess({{5, 2}, {7, 1}}, 30, 1) == Tokens{5});
}

TEST_CASE("three opinions of three are no evidence") {
  CHECK(guess({{1}, {2}, {3}}, 30).empty());
}

TEST_CASE("longer matches push out shorter ones") {
  const Tokens short_one{1};
  const Tokens long_one{2};
  Matches matches;
  CHECK_FALSE(matches.wants(kGram - 1));
  matches.add({4, short_one});
  CHECK(matches.wants(4));
  CHECK_FALSE(matches.wants(3));
  matches.add({6, long_one});
  CHECK(matches.length() == 6);
  REQUIRE(matches.all().size() == 1);
  CHECK(matches.all()[0].follows.front() == 2);
  CHECK_FALSE(matches.wants(4));
}

TEST_CASE("only the longest that there can be, and enough of them, end a search") {
  const Tokens one{1};
  Matches matches;
  for (std::size_t i = 0; i < Matches::kMost; ++i) {
    CHECK_FALSE(matches.full());
    matches.add({kLongest, one});
  }
  CHECK(matches.full());
  CHECK_FALSE(matches.wants(kLongest));
}
