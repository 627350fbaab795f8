// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "cache/page_pool.h"
#include "types.h"

namespace tokenspeed {

using NodeId = std::int32_t;
inline constexpr NodeId kRootNode = -1;
inline constexpr NodeId kNoNode = -2;

// What identifies one page of a prefix besides its parent.
struct PageContent {
  PageKey key;
  Namespace ns;
  std::span<const TokenId> tokens;  // exactly one page of them
};

// A token sequence as the tree reads it: keys[i] belongs to page i of tokens.
struct Prefix {
  Namespace ns;
  std::span<const TokenId> tokens;
  std::span<const PageKey> keys;

  PageContent page(int index, int page_size) const noexcept {
    const auto i = static_cast<std::size_t>(index);
    const auto size = static_cast<std::size_t>(page_size);
    return {keys[i], ns, tokens.subspan(i * size, size)};
  }
};

// The longest resident prefix. It holds nothing: it is valid until the tree changes.
struct Match {
  NodeId tip = kRootNode;
  int pages = 0;
  int unpinned = 0;  // of these pages, how many an eviction could take now
};

class PrefixTree;

// Keeps the pages from the root down to one node resident.
class [[nodiscard]] TreePin {
 public:
  TreePin() noexcept = default;
  TreePin(TreePin&& other) noexcept
      : tree_(std::exchange(other.tree_, nullptr)), tip_(other.tip_), depth_(other.depth_) {
    other.clear();
  }
  TreePin& operator=(TreePin&& other) noexcept;
  ~TreePin() { reset(); }

  void reset() noexcept;
  NodeId tip() const noexcept { return tip_; }
  int depth() const noexcept { return depth_; }  // in pages
  explicit operator bool() const noexcept { return tree_ != nullptr; }

 private:
  friend class PrefixTree;
  TreePin(PrefixTree* tree, NodeId tip, int depth) noexcept
      : tree_(tree), tip_(tip), depth_(depth) {}
  void clear() noexcept {
    tip_ = kRootNode;
    depth_ = 0;
  }

  PrefixTree* tree_ = nullptr;
  NodeId tip_ = kRootNode;
  int depth_ = 0;
};

// Which token prefixes are resident on the device: one node owns one full page.
//
// A node is pinned while any TreePin's path runs through it. Unpinned nodes stand in one list
// in the order in which they were given up, the deepest of a path first. A pin covers the whole
// path, so in that list every node stands before its parent: its head is always a leaf, and
// evicting from the head is least-recently-used order in O(1), without a clock.
class PrefixTree {
 public:
  PrefixTree(PagePool& pool, int page_size);
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  ~PrefixTree();

  // The resident prefix of at most max_pages pages. Changes nothing.
  Match match(const Prefix& prefix, int max_pages) const noexcept;
  TreePin pin(const Match& match) noexcept;

  // Hands the page that follows the pinned path to the tree and moves the pin onto it. Returns
  // the page to its owner when an equal one was there first and is being read, else nothing.
  Page publish(TreePin& pin, const PageContent& content, Page page) noexcept;

  // Gives `page` to `node` in exchange for its equal, when nobody but `pins` pins reads that one.
  bool exchange(NodeId node, Page& page, int pins) noexcept;

  // Frees the least recently used unpinned leaf; false when there is none.
  bool evict_one() noexcept;

  int evictable() const noexcept { return evictable_; }  // pages of unpinned nodes
  int size() const noexcept { return size_; }

  NodeId parent_of(NodeId id) const noexcept { return at(id).parent; }
  PageId page_of(NodeId id) const noexcept { return at(id).page.id(); }

  // For the ledger: visit(node, pins) for every node.
  template <class F>
  void for_each_node(F&& visit) const {
    for (NodeId id = 0; id < static_cast<NodeId>(nodes_.size()); ++id) {
      if (at(id).page) {
        visit(id, at(id).pins);
      }
    }
  }

 private:
  friend class TreePin;

  struct Node {
    PageKey key = 0;
    Namespace ns = 0;
    Page page;
    NodeId parent = kRootNode;
    NodeId next_in_bucket = kNoNode;
    NodeId older = kNoNode;  // neighbours in the list of unpinned nodes
    NodeId newer = kNoNode;
    int pins = 0;
    int children = 0;
  };

  Node& at(NodeId id) noexcept { return nodes_[static_cast<std::size_t>(id)]; }
  const Node& at(NodeId id) const noexcept { return nodes_[static_cast<std::size_t>(id)]; }
  std::size_t bucket_of(PageKey key) const noexcept { return key & (buckets_.size() - 1); }
  std::span<TokenId> tokens_of(NodeId id) noexcept;
  bool holds(NodeId id, NodeId parent, const PageContent& content) const noexcept;
  NodeId find(NodeId parent, const PageContent& content) const noexcept;
  NodeId insert(NodeId parent, const PageContent& content, Page page) noexcept;
  void unindex(NodeId id) noexcept;
  void add_pin(NodeId id) noexcept;
  void drop_pins(NodeId tip) noexcept;
  void list_append(NodeId id) noexcept;
  void list_remove(NodeId id) noexcept;

  int page_size_;
  int size_ = 0;
  int evictable_ = 0;
  NodeId oldest_ = kNoNode;
  NodeId newest_ = kNoNode;
  // Everything is allocated once: there are never more nodes than pages.
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;  // page_size tokens per node
  std::vector<NodeId> free_nodes_;
  std::vector<NodeId> buckets_;
};

inline TreePin& TreePin::operator=(TreePin&& other) noexcept {
  if (this != &other) {
    reset();
    tree_ = std::exchange(other.tree_, nullptr);
    tip_ = other.tip_;
    depth_ = other.depth_;
    other.clear();
  }
  return *this;
}

inline void TreePin::reset() noexcept {
  if (tree_ != nullptr) {
    std::exchange(tree_, nullptr)->drop_pins(tip_);
    clear();
  }
}

}  // namespace tokenspeed
