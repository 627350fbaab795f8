// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <optional>
#include <utility>
#include <vector>

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

// One full group: blocks of one page of two tokens.
struct Forest {
  explicit Forest(int num_pages, int hash_bits = 64, int host_pages = 0)
      : pool(num_pages), host(host_pages), hasher(2, hash_bits) {
    tree.emplace(layout, pool, host, events);
  }

  Text text(std::vector<TokenId> tokens, Namespace ns = 0) const {
    Text text{ns, std::move(tokens), {}};
    hasher.extend(ns, text.tokens, text.keys);
    return text;
  }

  // A page that the tree did not take is returned.
  Page publish(TreePin& pin, const Text& text, int block) {
    std::vector<Page> pages;
    pages.push_back(pool.take());
    CHECK(tree->publish(pin, text.prefix().block(block, 2), pages));
    return std::move(pages[0]);
  }

  TreePin root_pin() { return tree->pin(Match{}, 8); }

  // Publishes every block of `text`; the pin keeps them.
  TreePin grow(const Text& text) {
    TreePin pin = root_pin();
    for (int i = 0; i < static_cast<int>(text.keys.size()); ++i) {
      const Page kept = publish(pin, text, i);
    }
    return pin;
  }

  Match look(const Text& text, int max_tokens = 100) const {
    Match match;
    tree->match(text.prefix(), std::min(max_tokens, static_cast<int>(text.tokens.size())), match);
    return match;
  }
  int match(const Text& text, int max_tokens = 100) const { return look(text, max_tokens).blocks; }
  int evictable() const { return tree->page_count(Grip::FREE) + tree->page_count(Grip::KEPT); }
  bool evict(Tier tier = Tier::DEVICE) { return tree->evict(tier) > 0; }

  Layout layout{{{"full", 2, 0}}};
  PagePool pool;
  PagePool host;
  KvEventLog events{false, 2};
  PageHasher hasher;
  std::optional<PrefixTree> tree;
};

}  // namespace

TEST_CASE("a prefix matches block by block, up to the limit asked for") {
  Forest forest(8);
  const TreePin pin = forest.grow(forest.text({1, 2, 3, 4, 5, 6}));
  CHECK(pin.depth() == 3);
  CHECK(forest.match(forest.text({1, 2, 3, 4, 5, 6})) == 3);
  CHECK(forest.match(forest.text({1, 2, 3, 4, 5, 6}), 5) == 2);
  CHECK(forest.match(forest.text({1, 2, 3, 4, 9, 9})) == 2);
  CHECK(forest.match(forest.text({9, 2, 3, 4})) == 0);
  CHECK(forest.match(forest.text({1, 2, 3, 4}, 7)) == 0);
}

TEST_CASE("a match names the block whose first tokens are the same") {
  Forest forest(8);
  const TreePin pin = forest.grow(forest.text({1, 2, 3, 4, 5, 6}));
  const Match limited = forest.look(forest.text({1, 2, 3, 4, 5, 6}), 5);
  CHECK(limited.blocks == 2);
  CHECK(limited.partial == 1);
  CHECK(limited.source == pin.node(2));
  CHECK(limited.tokens(2) == 5);
  const Match fork = forest.look(forest.text({1, 2, 3, 9}));
  CHECK(fork.source == pin.node(1));
  CHECK(fork.tokens(2) == 3);
  CHECK(forest.look(forest.text({1, 9}, 7)).source == kNoNode);
}

// With one bit, half of all blocks have the same key: content, parent and namespace must decide.
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
  CHECK(forest.evictable() == 0);
  CHECK(!forest.evict());
  CHECK(forest.look(text).reclaimable == 0);
  TreePin moved = std::move(pin);
  CHECK(!pin);
  CHECK(forest.evictable() == 0);
  TreePin& same = moved;
  moved = std::move(same);
  CHECK(forest.evictable() == 0);
  moved.reset();
  CHECK(forest.evictable() == 2);
  CHECK(forest.look(text).reclaimable == 2);
  CHECK(forest.pool.free() == 6);
}

TEST_CASE("a kept path is available, but no eviction takes it before it is given up") {
  Forest forest(8);
  TreePin pin = forest.grow(forest.text({1, 2, 3, 4}));
  forest.tree->keep(pin);
  CHECK(forest.tree->page_count(Grip::KEPT) == 2);
  CHECK(forest.evictable() == 2);
  CHECK(!forest.evict());
  pin.reset();
  CHECK(forest.tree->page_count(Grip::FREE) == 2);
  CHECK(forest.evict());
}

TEST_CASE("eviction takes the least recently used leaf") {
  Forest forest(8);
  const Text ab = forest.text({1, 1, 2, 2});
  const Text ac = forest.text({1, 1, 3, 3});
  const Text d = forest.text({4, 4});
  forest.grow(ab).reset();
  forest.grow(d).reset();
  forest.grow(ac).reset();
  REQUIRE(forest.evictable() == 4);
  CHECK(forest.evict());  // b: given up first
  CHECK(forest.match(ab) == 1);
  CHECK(forest.match(ac) == 2);
  forest.tree->pin(forest.look(d), 1).reset();  // d is used again
  CHECK(forest.evict());                        // c, a leaf before its parent
  CHECK(forest.match(ac) == 1);
  CHECK(forest.evict());  // a
  CHECK(forest.match(ab) == 0);
  CHECK(forest.match(d) == 1);
  CHECK(forest.evict());
  CHECK(!forest.evict());
  CHECK(forest.pool.free() == 8);
  CHECK(forest.tree->num_nodes() == 0);
}

TEST_CASE("publishing an equal block: unpinned gets replaced, pinned leaves ours to us") {
  Forest forest(8);
  const Text text = forest.text({1, 2});
  TreePin first = forest.grow(text);
  const PageId published = forest.tree->page_of(first.tip(), 0);

  TreePin second = forest.root_pin();
  Page kept = forest.publish(second, text, 0);
  CHECK(kept);
  CHECK(second.tip() == first.tip());
  CHECK(forest.tree->page_of(second.tip(), 0) == published);
  CHECK(forest.tree->num_nodes() == 1);

  CHECK(!forest.tree->exchange(second.tip(), 0, kept, 1));  // the first still reads it
  first.reset();
  CHECK(forest.tree->exchange(second.tip(), 0, kept, 1));
  CHECK(kept.id() == published);
  kept.reset();
  second.reset();

  TreePin third = forest.root_pin();
  std::vector<Page> pages;
  pages.push_back(forest.pool.take());
  const PageId ours = pages[0].id();
  CHECK(forest.tree->publish(third, text.prefix().block(0, 2), pages));
  CHECK(!pages[0]);
  CHECK(forest.tree->page_of(third.tip(), 0) == ours);
  CHECK(forest.pool.free() == 7);
}

TEST_CASE("a block on the host keeps its node when the device gives it up, and is to be loaded") {
  Forest forest(8, 64, 2);
  const Text text = forest.text({1, 2, 3, 4});
  TreePin pin = forest.grow(text);
  for (const NodeId node : pin.path()) {
    forest.tree->attach(Tier::HOST, node, 0, forest.host.take());
  }
  pin.reset();
  CHECK(forest.evict());
  CHECK(forest.evict());
  CHECK(!forest.evict());
  CHECK(forest.pool.free() == 8);
  const Match match = forest.look(text);
  CHECK(match.blocks == 2);
  CHECK(match.load_pages == 2);
  CHECK(match.load_blocks == 2);
  CHECK(match.reclaimable == 0);
  CHECK(forest.evict(Tier::HOST));  // the leaf
  CHECK(forest.match(text) == 1);
  CHECK(forest.evict(Tier::HOST));
  CHECK(forest.tree->num_nodes() == 0);
  CHECK(forest.host.free() == 2);
}
