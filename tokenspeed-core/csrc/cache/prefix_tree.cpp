// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "cache/prefix_tree.h"

#include <algorithm>
#include <bit>

namespace tokenspeed {

PrefixTree::PrefixTree(PagePool& pool, int page_size)
    : page_size_(page_size),
      nodes_(static_cast<std::size_t>(pool.total())),
      tokens_(nodes_.size() * static_cast<std::size_t>(page_size)),
      buckets_(std::bit_ceil(nodes_.size() * 2), kNoNode) {
  free_nodes_.reserve(nodes_.size());
  for (NodeId id = pool.total() - 1; id >= 0; --id) {
    free_nodes_.push_back(id);
  }
}

PrefixTree::~PrefixTree() { assert(evictable_ == size_ && "a pin outlived the tree"); }

Match PrefixTree::match(const Prefix& prefix, int max_pages) const noexcept {
  Match match;
  const int limit = std::min(max_pages, static_cast<int>(prefix.keys.size()));
  while (match.pages < limit) {
    const NodeId next = find(match.tip, prefix.page(match.pages, page_size_));
    if (next == kNoNode) {
      break;
    }
    match.tip = next;
    match.pages += 1;
    match.unpinned += at(next).pins == 0 ? 1 : 0;
  }
  return match;
}

TreePin PrefixTree::pin(const Match& match) noexcept {
  for (NodeId id = match.tip; id != kRootNode; id = at(id).parent) {
    add_pin(id);
  }
  return TreePin(this, match.tip, match.pages);
}

// Three cases. Nobody has this page: the tree takes ours. An equal one is there and unpinned:
// nobody reads it, so the tree takes ours and frees that one (our rows keep reading the page
// that their table names). An equal one is there and pinned: we keep ours, unshared, until the
// request ends or pages run short (see Reservation::fold_twins).
Page PrefixTree::publish(TreePin& pin, const PageContent& content, Page page) noexcept {
  assert(pin.tree_ == this && page);
  NodeId node = find(pin.tip_, content);
  if (node == kNoNode) {
    node = insert(pin.tip_, content, std::move(page));
  } else if (exchange(node, page, 0)) {
    page.reset();
  }
  add_pin(node);
  pin.tip_ = node;
  pin.depth_ += 1;
  return page;
}

bool PrefixTree::exchange(NodeId node, Page& page, int pins) noexcept {
  if (at(node).pins != pins) {
    return false;
  }
  std::swap(at(node).page, page);
  return true;
}

bool PrefixTree::evict_one() noexcept {
  const NodeId id = oldest_;
  if (id == kNoNode) {
    return false;
  }
  assert(at(id).children == 0 && at(id).pins == 0);
  list_remove(id);
  unindex(id);
  if (at(id).parent != kRootNode) {
    at(at(id).parent).children -= 1;
  }
  at(id).page.reset();
  free_nodes_.push_back(id);
  size_ -= 1;
  return true;
}

std::span<TokenId> PrefixTree::tokens_of(NodeId id) noexcept {
  const auto size = static_cast<std::size_t>(page_size_);
  return std::span<TokenId>(tokens_).subspan(static_cast<std::size_t>(id) * size, size);
}

bool PrefixTree::holds(NodeId id, NodeId parent, const PageContent& content) const noexcept {
  const Node& node = at(id);
  if (node.key != content.key || node.parent != parent || node.ns != content.ns) {
    return false;
  }
  const TokenId* held = &tokens_[static_cast<std::size_t>(id) * content.tokens.size()];
  return std::equal(content.tokens.begin(), content.tokens.end(), held);
}

// The parent is compared by identity: a node's path is its content, so an equal parent and equal
// tokens make an equal prefix however the keys collide.
NodeId PrefixTree::find(NodeId parent, const PageContent& content) const noexcept {
  NodeId id = buckets_[bucket_of(content.key)];
  while (id != kNoNode && !holds(id, parent, content)) {
    id = at(id).next_in_bucket;
  }
  return id;
}

NodeId PrefixTree::insert(NodeId parent, const PageContent& content, Page page) noexcept {
  assert(!free_nodes_.empty() && "more nodes than pages");
  const NodeId id = free_nodes_.back();
  free_nodes_.pop_back();
  Node& node = at(id);
  NodeId& bucket = buckets_[bucket_of(content.key)];
  node.key = content.key;
  node.ns = content.ns;
  node.page = std::move(page);
  node.parent = parent;
  node.next_in_bucket = std::exchange(bucket, id);
  std::copy(content.tokens.begin(), content.tokens.end(), tokens_of(id).begin());
  if (parent != kRootNode) {
    at(parent).children += 1;
  }
  size_ += 1;
  list_append(id);  // the caller pins it next, which takes it out again
  return id;
}

void PrefixTree::unindex(NodeId id) noexcept {
  NodeId* link = &buckets_[bucket_of(at(id).key)];
  while (*link != id) {
    link = &at(*link).next_in_bucket;
  }
  *link = std::exchange(at(id).next_in_bucket, kNoNode);
}

void PrefixTree::add_pin(NodeId id) noexcept {
  if (at(id).pins++ == 0) {
    list_remove(id);
  }
}

void PrefixTree::drop_pins(NodeId tip) noexcept {
  for (NodeId id = tip; id != kRootNode; id = at(id).parent) {
    assert(at(id).pins > 0);
    if (--at(id).pins == 0) {
      list_append(id);
    }
  }
}

void PrefixTree::list_append(NodeId id) noexcept {
  at(id).older = newest_;
  at(id).newer = kNoNode;
  (newest_ == kNoNode ? oldest_ : at(newest_).newer) = id;
  newest_ = id;
  evictable_ += 1;
}

void PrefixTree::list_remove(NodeId id) noexcept {
  const Node& node = at(id);
  (node.older == kNoNode ? oldest_ : at(node.older).newer) = node.newer;
  (node.newer == kNoNode ? newest_ : at(node.newer).older) = node.older;
  evictable_ -= 1;
}

}  // namespace tokenspeed
