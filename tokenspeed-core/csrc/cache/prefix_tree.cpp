// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "cache/prefix_tree.h"

#include <algorithm>
#include <bit>

namespace tokenspeed {
namespace {

// Every node owns a page, but for the inner nodes of models without a full group.
constexpr int kSpareNodes = 1024;

}  // namespace

PrefixTree::PrefixTree(const Layout& layout, PagePool& device, PagePool& host, KvEventLog& events)
    : layout_(layout), events_(events) {
  const auto count = static_cast<std::size_t>(device.total() + host.total() + kSpareNodes);
  const auto width = static_cast<std::size_t>(layout.width());
  nodes_.resize(count);
  parts_.resize(count * layout.parts().size());
  slots_[0].resize(count * width);
  slots_[1].resize(host.total() > 0 ? count * width : 0);
  tokens_.resize(count * static_cast<std::size_t>(layout.block_size()));
  staging_.resize(width);
  buckets_.assign(std::bit_ceil(count * 2), kNoNode);
  lists_[0].resize(layout.parts().size());
  lists_[1].resize(layout.parts().size());
  free_nodes_.reserve(count);
  for (auto id = static_cast<NodeId>(count) - 1; id > kRootNode; --id) {
    free_nodes_.push_back(id);
  }
}

// -- what comes in ------------------------------------------------------------------------------

bool PrefixTree::publish(TreePin& pin, const BlockContent& content,
                         std::span<Page> pages) noexcept {
  assert(pin.tree_ == this);
  NodeId node = find(pin.tip(), content);
  if (node == kNoNode) {
    node = insert(pin.tip(), content);
    if (node == kNoNode) {
      return false;
    }
  }
  extend(pin, node);
  for (int p = 0; p < layout_.num_parts(); ++p) {
    const Part& part = layout_.part(p);
    give(node, p, pin.holds(p, pin.depth() - 1) ? 1 : 0,
         pages.subspan(static_cast<std::size_t>(part.first_entry),
                       static_cast<std::size_t>(part.entries)));
  }
  return true;
}

// Per part, three cases. The tree has none: it takes ours. It has an equal one that nobody else
// reads: it takes ours and frees that one (our rows keep reading the page that their table
// names). Others read it: we keep ours as a twin.
void PrefixTree::give(NodeId id, int part, int our_pins, std::span<Page> pages) noexcept {
  const bool had = resident(Tier::DEVICE, id, part);
  const bool only_ours = hold(id, part).pins == our_pins;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const int entry = layout_.part(part).first_entry + static_cast<int>(i);
    if (!pages[i]) {
      continue;
    }
    if (!page(Tier::DEVICE, id, entry)) {
      if (!had || only_ours) {
        put(Tier::DEVICE, id, entry, std::move(pages[i]));
      }
    } else if (only_ours) {
      std::swap(page(Tier::DEVICE, id, entry), pages[i]);
      pages[i].reset();
    }
  }
}

NodeId PrefixTree::publish_tail(const TreePin& pin, Namespace ns, std::span<const TokenId> tokens,
                                std::span<Page> pages) noexcept {
  assert(!tokens.empty() && static_cast<int>(tokens.size()) < layout_.block_size());
  int looked_at = 0;
  for (NodeId id = at(pin.tip()).first_child; id != kNoNode && looked_at < kMaxSiblings;
       id = at(id).next_sibling, ++looked_at) {
    const auto held = tokens_of(id).first(static_cast<std::size_t>(at(id).fill));
    if (at(id).ns == ns && common_prefix(tokens, held) == static_cast<int>(tokens.size())) {
      return kNoNode;  // a longer one, or an equal one, is there
    }
  }
  const NodeId node = take_node(pin.tip(), ns, tokens);
  if (node != kNoNode) {
    for (int entry = 0; entry < layout_.width(); ++entry) {
      if (pages[static_cast<std::size_t>(entry)]) {
        put(Tier::DEVICE, node, entry, std::move(pages[static_cast<std::size_t>(entry)]));
      }
    }
  }
  return node;
}

bool PrefixTree::adopt(NodeId tail, std::span<Page> pages) noexcept {
  bool held = at(tail).hold.any();
  for (int p = 0; p < layout_.num_parts(); ++p) {
    held |= hold(tail, p).any();
  }
  if (held || !is_tail(tail)) {
    return false;
  }
  for (int p = 0; p < layout_.num_parts(); ++p) {
    PartState& state = part_of(tail, p);
    if (state.pages[0] == 0) {
      continue;
    }
    list_remove(Tier::DEVICE, tail, p);
    pages_[static_cast<std::size_t>(Grip::FREE)] -= std::exchange(state.pages[0], 0);
    const Part& part = layout_.part(p);
    for (int entry = part.first_entry; entry < part.first_entry + part.entries; ++entry) {
      pages[static_cast<std::size_t>(entry)] = std::move(page(Tier::DEVICE, tail, entry));
    }
  }
  destroy(tail);
  return true;
}

bool PrefixTree::exchange(NodeId node, int entry, Page& mine, int pins) noexcept {
  Page& held = page(Tier::DEVICE, node, entry);
  if (!held || hold(node, layout_.part_of_entry(entry)).pins != pins) {
    return false;
  }
  std::swap(held, mine);
  return true;
}

void PrefixTree::attach(Tier tier, NodeId node, int entry, Page page_in) noexcept {
  if (!page(tier, node, entry)) {
    put(tier, node, entry, std::move(page_in));
  }
}

void PrefixTree::put(Tier tier, NodeId id, int entry, Page page_in) noexcept {
  const int p = layout_.part_of_entry(entry);
  PartState& state = part_of(id, p);
  const Grip grip = hold(id, p).grip();
  page(tier, id, entry) = std::move(page_in);
  state.pages[index(tier)] += 1;
  if (tier == Tier::DEVICE) {
    pages_[static_cast<std::size_t>(grip)] += 1;
  }
  if (state.pages[index(tier)] == 1) {
    if (grip == Grip::FREE) {
      state.tick = ++tick_;
      list_append(tier, id, p);
    }
    if (reports(id)) {
      events_.stored(tier, layout_.part(p).group, describe(id));
    }
  }
}

// -- what goes ----------------------------------------------------------------------------------

int PrefixTree::evict(Tier tier) noexcept {
  NodeId oldest = kNoNode;
  int of_part = 0;
  for (int p = 0; p < layout_.num_parts(); ++p) {
    const NodeId head = list(tier, p).oldest;
    if (head != kNoNode &&
        (oldest == kNoNode || part_of(head, p).tick < part_of(oldest, of_part).tick)) {
      oldest = head;
      of_part = p;
    }
  }
  if (oldest == kNoNode) {
    return 0;
  }
  const int pages = drop_pages(tier, oldest, of_part);
  prune(oldest);
  return pages;
}

int PrefixTree::drop_pages(Tier tier, NodeId id, int part) noexcept {
  PartState& state = part_of(id, part);
  const int count = state.pages[index(tier)];
  if (count == 0) {
    return 0;
  }
  const Grip grip = hold(id, part).grip();
  if (grip == Grip::FREE) {
    list_remove(tier, id, part);
  }
  if (tier == Tier::DEVICE) {
    pages_[static_cast<std::size_t>(grip)] -= count;
  }
  state.pages[index(tier)] = 0;
  const Part& p = layout_.part(part);
  for (int entry = p.first_entry; entry < p.first_entry + p.entries; ++entry) {
    page(tier, id, entry).reset();
  }
  if (reports(id)) {
    events_.removed(tier, p.group, describe(id));
  }
  return count;
}

// With full groups, a node without full pages leads nowhere; without, one that has nothing at all.
bool PrefixTree::worthless(NodeId id) const noexcept {
  if (layout_.has_full()) {
    return !anywhere(id, 0);
  }
  for (int p = 0; p < layout_.num_parts(); ++p) {
    if (anywhere(id, p)) {
      return false;
    }
  }
  return at(id).first_child == kNoNode;
}

void PrefixTree::prune(NodeId id) noexcept {
  while (id != kRootNode && !at(id).hold.any() && worthless(id)) {
    const NodeId parent = at(id).parent;
    destroy(id);
    id = parent;
  }
}

// With everything below it. Who holds a node holds its parents, so nobody holds these.
void PrefixTree::destroy(NodeId top) noexcept {
  NodeId id = top;
  while (true) {
    while (at(id).first_child != kNoNode) {
      id = at(id).first_child;
    }
    const NodeId parent = at(id).parent;
    destroy_one(id);
    if (id == top) {
      return;
    }
    id = parent;
  }
}

void PrefixTree::destroy_one(NodeId id) noexcept {
  assert(!at(id).hold.any() && at(id).first_child == kNoNode);
  for (int p = 0; p < layout_.num_parts(); ++p) {
    drop_pages(Tier::DEVICE, id, p);
    drop_pages(Tier::HOST, id, p);
    part_of(id, p) = {};
  }
  if (!is_tail(id)) {
    unindex(id);
  }
  unlink(id);
  at(id) = {};
  free_nodes_.push_back(id);
  num_nodes_ -= 1;
}

void PrefixTree::report_all() noexcept {
  NodeId id = at(kRootNode).first_child;
  while (id != kNoNode) {
    for (int p = 0; p < layout_.num_parts() && reports(id); ++p) {
      for (const Tier tier : {Tier::DEVICE, Tier::HOST}) {
        if (resident(tier, id, p)) {
          events_.stored(tier, layout_.part(p).group, describe(id));
        }
      }
    }
    NodeId next = at(id).first_child;
    for (; next == kNoNode && id != kRootNode; id = at(id).parent) {
      next = at(id).next_sibling;
    }
    id = next;
  }
}

// -- nodes --------------------------------------------------------------------------------------

std::span<TokenId> PrefixTree::tokens_of(NodeId id) noexcept {
  const auto size = static_cast<std::size_t>(layout_.block_size());
  return std::span<TokenId>(tokens_).subspan(static_cast<std::size_t>(id) * size, size);
}
std::span<const TokenId> PrefixTree::tokens_of(NodeId id) const noexcept {
  const auto size = static_cast<std::size_t>(layout_.block_size());
  return std::span<const TokenId>(tokens_).subspan(static_cast<std::size_t>(id) * size, size);
}

KvBlock PrefixTree::describe(NodeId id) const noexcept {
  const Node& node = at(id);
  return {node.key, at(node.parent).key, node.ns, tokens_of(id)};
}

bool PrefixTree::holds(NodeId id, NodeId parent, const BlockContent& content) const noexcept {
  const Node& node = at(id);
  if (node.key != content.key || node.parent != parent || node.ns != content.ns) {
    return false;
  }
  return std::equal(content.tokens.begin(), content.tokens.end(), tokens_of(id).begin());
}

// The parent is compared by identity: a node's path is its content, so an equal parent and equal
// tokens make an equal prefix however the keys collide.
NodeId PrefixTree::find(NodeId parent, const BlockContent& content) const noexcept {
  NodeId id = buckets_[bucket_of(content.key)];
  while (id != kNoNode && !holds(id, parent, content)) {
    id = at(id).next_in_bucket;
  }
  return id;
}

// Nodes can only run out where inner nodes own nothing; then the oldest cached pages go.
NodeId PrefixTree::take_node(NodeId parent, Namespace ns,
                             std::span<const TokenId> tokens) noexcept {
  while (free_nodes_.empty()) {
    if (evict(Tier::DEVICE) == 0 && evict(Tier::HOST) == 0) {
      return kNoNode;
    }
  }
  const NodeId id = free_nodes_.back();
  free_nodes_.pop_back();
  Node& node = at(id);
  node.ns = ns;
  node.parent = parent;
  node.fill = static_cast<int>(tokens.size());
  node.next_sibling = std::exchange(at(parent).first_child, id);
  if (node.next_sibling != kNoNode) {
    at(node.next_sibling).previous_sibling = id;
  }
  std::copy(tokens.begin(), tokens.end(), tokens_of(id).begin());
  num_nodes_ += 1;
  return id;
}

NodeId PrefixTree::insert(NodeId parent, const BlockContent& content) noexcept {
  const NodeId id = take_node(parent, content.ns, content.tokens);
  if (id != kNoNode) {
    at(id).key = content.key;
    at(id).next_in_bucket = std::exchange(buckets_[bucket_of(content.key)], id);
  }
  return id;
}

void PrefixTree::unindex(NodeId id) noexcept {
  NodeId* link = &buckets_[bucket_of(at(id).key)];
  while (*link != id) {
    link = &at(*link).next_in_bucket;
  }
  *link = at(id).next_in_bucket;
}

void PrefixTree::unlink(NodeId id) noexcept {
  const Node& node = at(id);
  (node.previous_sibling == kNoNode ? at(node.parent).first_child
                                    : at(node.previous_sibling).next_sibling) = node.next_sibling;
  if (node.next_sibling != kNoNode) {
    at(node.next_sibling).previous_sibling = node.previous_sibling;
  }
}

void PrefixTree::list_append(Tier tier, NodeId id, int part) noexcept {
  List& l = list(tier, part);
  const std::size_t t = index(tier);
  PartState& state = part_of(id, part);
  state.older[t] = l.newest;
  state.newer[t] = kNoNode;
  (l.newest == kNoNode ? l.oldest : part_of(l.newest, part).newer[t]) = id;
  l.newest = id;
}

void PrefixTree::list_remove(Tier tier, NodeId id, int part) noexcept {
  List& l = list(tier, part);
  const std::size_t t = index(tier);
  const PartState& state = part_of(id, part);
  (state.older[t] == kNoNode ? l.oldest : part_of(state.older[t], part).newer[t]) = state.newer[t];
  (state.newer[t] == kNoNode ? l.newest : part_of(state.newer[t], part).older[t]) = state.older[t];
}

}  // namespace tokenspeed
