// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "drafts/suffix_drafter.h"

using namespace tokenspeed;
using namespace tokenspeed::drafts;

namespace {

using Tokens = std::vector<TokenId>;
constexpr std::size_t kPool = 1 << 16;

Tokens draft(SuffixDrafter& drafter, RequestId request, std::size_t most = 8) {
  Tokens guess(most);
  guess.resize(drafter.draft(request, guess));
  return guess;
}

Tokens numbers(TokenId first, std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

}  // namespace

TEST_CASE("a request repeats its prompt") {
  SuffixDrafter drafter(1000, kPool);
  drafter.begin(1, {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, 0);
  CHECK(draft(drafter, 1).empty());
  drafter.advance(1, {{2}});
  CHECK(draft(drafter, 1).empty());  // one token is not enough
  drafter.advance(1, {{3}});
  CHECK(draft(drafter, 1) == Tokens{4, 5});
  drafter.advance(1, {{4}});
  CHECK(draft(drafter, 1) == Tokens{5, 6, 7});
  CHECK(draft(drafter, 1, 2) == Tokens{5, 6});
  CHECK(draft(drafter, 1) == Tokens{5, 6, 7});  // nothing was told in between
  drafter.advance(1, {{5, 6, 7}});
  CHECK(draft(drafter, 1) == Tokens{8, 9, 2, 3, 4});
}

TEST_CASE("the longest match counts, not the latest") {
  SuffixDrafter drafter(1000, 0);
  drafter.begin(1, {{1, 2, 3, 4, 50, 8, 2, 3, 4, 60, 1, 2, 3, 4}}, 0);
  CHECK(draft(drafter, 1, 1) == Tokens{50});
}

TEST_CASE("of matches of one length the most frequent continuation, then the latest") {
  SuffixDrafter drafter(1000, 0);
  drafter.begin(1, {{9, 1, 2, 3, 50, 8, 1, 2, 3, 50, 7, 1, 2, 3, 60, 6, 1, 2, 3}}, 0);
  CHECK(draft(drafter, 1, 1) == Tokens{50});
  drafter.begin(2, {{9, 1, 2, 3, 50, 8, 1, 2, 3, 60, 6, 1, 2, 3}}, 0);
  CHECK(draft(drafter, 2, 1) == Tokens{60});
}

TEST_CASE("outputs of ended requests serve their namespace") {
  SuffixDrafter drafter(1000, kPool);
  drafter.begin(1, {{70, 71, 72, 73, 74}}, 5);
  drafter.advance(1, {{1, 2, 3, 4, 5, 6}});
  drafter.begin(2, {{1, 2, 3}}, 5);
  CHECK(draft(drafter, 2).empty());
  drafter.end(1);
  CHECK(draft(drafter, 2) == Tokens{4, 5, 6});
  drafter.begin(3, {{1, 2, 3}}, 6);
  CHECK(draft(drafter, 3).empty());
  drafter.begin(4, {{70, 71, 72}}, 5);  // the prompt was no output
  CHECK(draft(drafter, 4).empty());
}

TEST_CASE("requests end, begin anew, and are unknown") {
  SuffixDrafter drafter(1000, kPool);
  drafter.advance(1, {{1, 2, 3}});
  drafter.end(1);
  CHECK(draft(drafter, 1).empty());
  CHECK(drafter.requests() == 0);
  drafter.begin(1, {{1, 2, 3, 4, 1, 2, 3}}, 0);
  CHECK(draft(drafter, 1, 1) == Tokens{4});
  drafter.begin(1, {{1, 2, 3, 5, 1, 2, 3}}, 0);
  CHECK(draft(drafter, 1, 1) == Tokens{5});
  CHECK(drafter.requests() == 1);
  drafter.end(1);
  CHECK(drafter.requests() == 0);
  CHECK(draft(drafter, 1).empty());
}

TEST_CASE("a text ends at max_model_len") {
  SuffixDrafter drafter(10, kPool);
  drafter.begin(1, {{1, 2, 3, 4, 5, 1, 2, 3}}, 0);
  CHECK(draft(drafter, 1) == Tokens{4, 5});  // 1 would be the eleventh
  drafter.advance(1, {{4, 5}});
  CHECK(draft(drafter, 1).empty());
  drafter.advance(1, {{1, 2, 3}});
  CHECK(draft(drafter, 1).empty());
  drafter.begin(2, numbers(0, 50), 0);
  drafter.advance(2, {{0, 1, 2}});
  CHECK(draft(drafter, 2).empty());
}

TEST_CASE("a table that doubles has all that was there") {
  SuffixDrafter drafter(100'000, 0);
  drafter.begin(1, numbers(0, 10), 0);
  for (TokenId token = 10; token < 5000; ++token) {
    drafter.advance(1, {{token}});
  }
  for (const TokenId first : {0, 100, 255, 256, 257, 511, 2000, 4990}) {
    drafter.advance(1, {{-2, first, first + 1, first + 2}});
    CHECK(draft(drafter, 1, 1) == Tokens{first + 3});
  }
}

TEST_CASE("the answer is the same however the tokens came") {
  Tokens text;
  std::uint32_t state = 1;
  for (int i = 0; i < 2000; ++i) {
    state = state * 1664525u + 1013904223u;
    text.push_back(static_cast<TokenId>(state >> 30));  // of four tokens: many matches
  }
  const std::span<const TokenId> all(text);
  SuffixDrafter whole(5000, 0);
  SuffixDrafter parts(5000, 0);
  parts.begin(1, all.first(17), 0);
  for (std::size_t i = 17; i < text.size(); ++i) {
    parts.advance(1, all.subspan(i, 1));
    if (i % 100 == 0) {
      whole.begin(1, all.first(i + 1), 0);
      CHECK(draft(whole, 1) == draft(parts, 1));
    }
  }
}
