// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <optional>

#include "cache/page_keys.h"
#include "cache/prefix_tree.h"

using namespace tokenspeed;

namespace {

struct Text {
  Namespace ns;
  std::vector<TokenId> tokens;
  std::vector<PageKey> keys;
  Prefix prefix() const { return {ns, tokens, keys}; }
};

// Pages of two tokens.
struct Forest {
  explicit Forest(int num_pages, int hash_bits = 64) : pool(num_pages), hasher(2, hash_bits) {
    tree.emplace(pool, 2);
  }

  Text text(std::vector<TokenId> tokens, Namespace ns = 0) const {
    Text text{ns, std::move(tokens), {}};
    hasher.extend(ns, text.tokens, text.keys);
    return text;
  }

  // Publishes every page of `text`; the pin keeps them.
  TreePin grow(const Text& text) {
    TreePin pin = tree->pin(Match{});
    for (int i = 0; i < static_cast<int>(text.keys.size()); ++i) {
      const Page kept = tree->publish(pin, text.prefix().page(i, 2), pool.take());
    }
    return pin;
  }

  int match(const Text& text, int max_pages = 100) const {
    return tree->match(text.prefix(), max_pages).pages;
  }

  PagePool pool;
  PageHasher hasher;
  std::optional<PrefixTree> tree;
};

}  // namespace

TEST_CASE("a prefix matches page by page, up to the limit asked for") {
  Forest forest(8);
  const TreePin pin = forest.grow(forest.text({1, 2, 3, 4, 5, 6}));
  CHECK(pin.depth() == 3);
  CHECK(forest.match(forest.text({1, 2, 3, 4, 5, 6})) == 3);
  CHECK(forest.match(forest.text({1, 2, 3, 4, 5, 6}), 2) == 2);
  CHECK(forest.match(forest.text({1, 2, 3, 4, 9, 9})) == 2);
  CHECK(forest.match(forest.text({9, 2, 3, 4})) == 0);
  CHECK(forest.match(forest.text({1, 2, 3, 4}, 7)) == 0);
}

// With one bit, half of all pages have the same key: content, parent and namespace must decide.
TEST_CASE("colliding keys never make a hit") {
  Forest forest(32, 1);
  std::vector<TreePin> pins;
  for (TokenId a = 0; a < 4; ++a) {
    for (TokenId b = 0; b < 2; ++b) {
      pins.push_back(forest.grow(forest.text({a, a, b, b}, static_cast<Namespace>(b))));
    }
  }
  for (TokenId a = 0; a < 4; ++a) {
    for (TokenId b = 0; b < 2; ++b) {
      const auto ns = static_cast<Namespace>(b);
      CHECK(forest.match(forest.text({a, a, b, b}, ns)) == 2);
      CHECK(forest.match(forest.text({a, a, 1 - b, 1 - b}, ns)) == 1);
      CHECK(forest.match(forest.text({b, b, a, a, 3, 3}, 2)) == 0);
      CHECK(forest.match(forest.text({5, 5, b, b}, ns)) == 0);
    }
  }
}

TEST_CASE("pinned pages are not evictable; a match counts what it would pin") {
  Forest forest(8);
  const Text text = forest.text({1, 2, 3, 4});
  TreePin pin = forest.grow(text);
  CHECK(forest.tree->evictable() == 0);
  CHECK(!forest.tree->evict_one());
  CHECK(forest.tree->match(text.prefix(), 9).unpinned == 0);
  TreePin moved = std::move(pin);
  CHECK(!pin);
  CHECK(forest.tree->evictable() == 0);
  TreePin& same = moved;
  moved = std::move(same);
  CHECK(forest.tree->evictable() == 0);
  moved.reset();
  CHECK(forest.tree->evictable() == 2);
  CHECK(forest.tree->match(text.prefix(), 9).unpinned == 2);
  CHECK(forest.pool.free() == 6);
}

TEST_CASE("eviction takes the least recently used leaf") {
  Forest forest(8);
  const Text ab = forest.text({1, 1, 2, 2});
  const Text ac = forest.text({1, 1, 3, 3});
  const Text d = forest.text({4, 4});
  forest.grow(ab).reset();
  forest.grow(d).reset();
  forest.grow(ac).reset();
  REQUIRE(forest.tree->evictable() == 4);
  CHECK(forest.tree->evict_one());  // b: given up first
  CHECK(forest.match(ab) == 1);
  CHECK(forest.match(ac) == 2);
  forest.tree->pin(forest.tree->match(d.prefix(), 9)).reset();  // d is used again
  CHECK(forest.tree->evict_one());                               // c, a leaf before its parent
  CHECK(forest.match(ac) == 1);
  CHECK(forest.tree->evict_one());  // a
  CHECK(forest.match(ab) == 0);
  CHECK(forest.match(d) == 1);
  CHECK(forest.tree->evict_one());
  CHECK(!forest.tree->evict_one());
  CHECK(forest.pool.free() == 8);
  CHECK(forest.tree->size() == 0);
}

TEST_CASE("publishing an equal page: unpinned gets replaced, pinned leaves ours to us") {
  Forest forest(8);
  const Text text = forest.text({1, 2});
  TreePin first = forest.grow(text);
  const PageId published = forest.tree->page_of(first.tip());

  TreePin second = forest.tree->pin(Match{});
  Page kept = forest.tree->publish(second, text.prefix().page(0, 2), forest.pool.take());
  CHECK(kept);
  CHECK(second.tip() == first.tip());
  CHECK(forest.tree->page_of(second.tip()) == published);
  CHECK(forest.tree->size() == 1);

  first.reset();
  CHECK(forest.tree->exchange(second.tip(), kept, 1));
  CHECK(kept.id() == published);
  kept.reset();
  second.reset();

  TreePin third = forest.tree->pin(Match{});
  Page page = forest.pool.take();
  const PageId ours = page.id();
  CHECK(!forest.tree->publish(third, text.prefix().page(0, 2), std::move(page)));
  CHECK(forest.tree->page_of(third.tip()) == ours);
  CHECK(forest.pool.free() == 7);
}
