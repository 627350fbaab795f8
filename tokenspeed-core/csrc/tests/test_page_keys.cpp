// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include "cache/page_keys.h"

using namespace tokenspeed;

namespace {
std::vector<PageKey> keys_of(const PageHasher& hasher, Namespace ns,
                             const std::vector<TokenId>& tokens) {
  std::vector<PageKey> keys;
  hasher.extend(ns, tokens, keys);
  return keys;
}
}  // namespace

TEST_CASE("only full pages have keys") {
  const PageHasher hasher(4);
  CHECK(keys_of(hasher, 0, {1, 2, 3}).empty());
  CHECK(keys_of(hasher, 0, {1, 2, 3, 4, 5, 6, 7}).size() == 1);
}

TEST_CASE("a key depends on the namespace and on every token before its end") {
  const PageHasher hasher(2);
  const auto keys = keys_of(hasher, 0, {1, 2, 3, 4});
  CHECK(keys != keys_of(hasher, 1, {1, 2, 3, 4}));
  CHECK(keys[1] != keys_of(hasher, 0, {9, 2, 3, 4})[1]);
  CHECK(keys[0] == keys_of(hasher, 0, {1, 2, 9, 9})[0]);
}

TEST_CASE("keys extended page by page are those of the whole") {
  for (const int page_size : {1, 2, 3, 5}) {
    const PageHasher hasher(page_size);
    std::vector<TokenId> tokens;
    std::vector<PageKey> keys;
    for (TokenId token = 0; token < 31; ++token) {
      tokens.push_back(token * 7);
      hasher.extend(5, tokens, keys);
    }
    CHECK(keys == keys_of(hasher, 5, tokens));
    CHECK(keys.size() == 31u / static_cast<unsigned>(page_size));
  }
}

TEST_CASE("few bits collide") {
  const PageHasher hasher(1, 1);
  for (const PageKey key : keys_of(hasher, 0, {1, 2, 3, 4, 5, 6})) {
    CHECK(key <= 1);
  }
}
