// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "cache/prefix_tree.h"

#include <algorithm>
#include <bit>

namespace tokenspeed {
namespace {

// Every node owns a page, but for the inner nodes of models without a full group.
constexpr int kSpareNodes = 1024;
// How many children are compared for a hit inside a block: the newest ones.
constexpr int kMaxSiblings = 16;

int common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) noexcept {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return static_cast<int>(end - a.begin());
}

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

// -- matching -----------------------------------------------------------------------------------

// The first node that a hit of `tokens` tokens, `blocks` of them whole blocks, needs of a part.
int PrefixTree::first_needed(int part, int blocks, int tokens) const noexcept {
  const Part& p = layout_.part(part);
  if (p.kind == Kind::STATE) {
    return std::max(0, blocks - 1);
  }
  return std::min(blocks, Layout::first_read(p.kind, p.window, tokens) / layout_.block_size());
}

// runs[p]: how many nodes up to here have part p without a gap.
bool PrefixTree::warm(int blocks, std::span<const int> runs) const noexcept {
  for (int p = 0; p < layout_.num_parts(); ++p) {
    const int first = first_needed(p, blocks, blocks * layout_.block_size());
    if (runs[static_cast<std::size_t>(p)] < blocks - first) {
      return false;
    }
  }
  return true;
}

void PrefixTree::match(const Prefix& prefix, int max_tokens, Match& match) const {
  match.clear();
  std::array<int, kMaxGroups> runs{};
  const int block_size = layout_.block_size();
  const int limit = std::min(max_tokens / block_size, static_cast<int>(prefix.keys.size()));
  NodeId tip = kRootNode;
  for (int depth = 0; depth < limit; ++depth) {
    tip = find(tip, prefix.block(depth, block_size));
    if (tip == kNoNode) {
      break;
    }
    match.path.push_back(tip);
    for (int p = 0; p < layout_.num_parts(); ++p) {
      int& run = runs[static_cast<std::size_t>(p)];
      run = anywhere(tip, p) ? run + 1 : 0;
    }
    if (warm(depth + 1, runs)) {
      match.blocks = depth + 1;
    }
  }
  weigh(match);
  match_partial(prefix, max_tokens, match);
}

void PrefixTree::weigh(Match& match) const noexcept {
  int first_load = match.blocks;
  for (int p = 0; p < layout_.num_parts(); ++p) {
    const int first = first_needed(p, match.blocks, match.blocks * layout_.block_size());
    for (int i = first; i < match.blocks; ++i) {
      const NodeId id = match.path[static_cast<std::size_t>(i)];
      const PartState& part = part_of(id, p);
      if (part.pages[0] == 0) {
        match.load_pages += part.pages[1];
        match.loading |= part.loading;
        first_load = std::min(first_load, i);
      } else if (hold(id, p).pins == 0) {
        match.reclaimable += part.pages[0];
      }
    }
  }
  match.load_blocks = match.blocks - first_load;
}

// A recurrent state exists at block ends only, so with one there is no hit inside a block.
void PrefixTree::match_partial(const Prefix& prefix, int max_tokens, Match& match) const noexcept {
  const int start = match.blocks * layout_.block_size();
  if (layout_.has_state() || max_tokens <= start) {
    return;
  }
  const auto wanted = prefix.tokens.subspan(static_cast<std::size_t>(start),
                                            static_cast<std::size_t>(max_tokens - start));
  const NodeId tip =
      match.blocks == 0 ? kRootNode : match.path[static_cast<std::size_t>(match.blocks) - 1];
  int looked_at = 0;
  for (NodeId id = at(tip).first_child; id != kNoNode && looked_at < kMaxSiblings;
       id = at(id).next_sibling, ++looked_at) {
    if (at(id).ns != prefix.ns) {
      continue;
    }
    const auto held = tokens_of(id).first(static_cast<std::size_t>(at(id).fill));
    const int tokens = common_prefix(held, wanted);
    // Of two that match equally far, one without further tokens may be adopted.
    const bool adoptable = tokens == match.partial && at(id).fill == tokens;
    const bool better = tokens > match.partial || (tokens > 0 && adoptable);
    if (better && serves(id, match.blocks, tokens)) {
      match.partial = tokens;
      match.source = id;
    }
  }
  if (match.source != kNoNode) {
    for (int p = 0; p < layout_.num_parts(); ++p) {
      match.reclaimable += hold(match.source, p).pins == 0 ? part_of(match.source, p).pages[0] : 0;
    }
  }
}

// Does the device have all pages of the block `source` that a hit of its first tokens reads?
bool PrefixTree::serves(NodeId source, int blocks, int tokens) const noexcept {
  const int start = blocks * layout_.block_size();
  for (const Group& group : layout_.groups()) {
    const int read = Layout::first_read(group.kind, group.window, start + tokens);
    for (int j = std::max(0, read - start) / group.page_size; j * group.page_size < tokens; ++j) {
      if (!page(Tier::DEVICE, source, group.first_entry + j)) {
        return false;
      }
    }
  }
  return true;
}

// -- pins ---------------------------------------------------------------------------------------

TreePin PrefixTree::pin(const Match& match, int capacity) {
  TreePin pin;
  pin.path_.reserve(static_cast<std::size_t>(std::max(capacity, match.blocks)));
  pin.tree_ = this;
  for (int p = 0; p < layout_.num_parts(); ++p) {
    pin.from_[static_cast<std::size_t>(p)] =
        first_needed(p, match.blocks, match.blocks * layout_.block_size());
  }
  for (int i = 0; i < match.blocks; ++i) {
    extend(pin, match.path[static_cast<std::size_t>(i)]);
  }
  return pin;
}

TreePin PrefixTree::hold_path(const TreePin& pin, HoldKind kind) {
  TreePin copy;
  copy.path_.reserve(pin.path_.size() + 1);
  copy.tree_ = this;
  copy.kind_ = kind;
  copy.from_ = pin.from_;
  for (const NodeId node : pin.path_) {
    extend(copy, node);
  }
  return copy;
}

void PrefixTree::keep(TreePin& pin) noexcept {
  for (int i = pin.depth() - 1; i >= 0; --i) {
    const NodeId id = pin.node(i);
    for (int p = layout_.has_full() ? 1 : 0; p < layout_.num_parts(); ++p) {
      if (i >= pin.from(p)) {
        add_part_hold(id, p, HoldKind::KEEP);
        drop_part_hold(id, p, HoldKind::PIN);
      }
    }
    add_hold(id, HoldKind::KEEP);
    drop_hold(id, HoldKind::PIN);
  }
  pin.kind_ = HoldKind::KEEP;
}

void PrefixTree::hold_checkpoint(TreePin& pin) noexcept {
  const int state = layout_.state_part();
  int& from = pin.from_[static_cast<std::size_t>(state)];
  for (int i = std::min(from, pin.depth()) - 1; i >= 0; --i) {
    add_part_hold(pin.node(i), state, pin.kind_);
    from = i;
    if (anywhere(pin.node(i), state)) {
      return;
    }
  }
}

TreePin PrefixTree::pin_node(NodeId node) {
  TreePin pin;
  pin.path_.reserve(1);
  pin.tree_ = this;
  extend(pin, node);
  return pin;
}

void PrefixTree::extend(TreePin& pin, NodeId node) noexcept {
  assert(pin.path_.size() < pin.path_.capacity());
  const int at_index = pin.depth();
  pin.path_.push_back(node);
  add_hold(node, pin.kind_);
  for (int p = layout_.has_full() ? 1 : 0; p < layout_.num_parts(); ++p) {
    if (at_index >= pin.from(p)) {
      add_part_hold(node, p, pin.kind_);
    }
  }
}

void TreePin::reset() noexcept {
  PrefixTree* tree = std::exchange(tree_, nullptr);
  if (tree == nullptr) {
    return;
  }
  for (int i = depth() - 1; i >= 0; --i) {
    for (int p = tree->layout_.has_full() ? 1 : 0; p < tree->layout_.num_parts(); ++p) {
      if (i >= from(p)) {
        tree->drop_part_hold(node(i), p, kind_);
      }
    }
    tree->drop_hold(node(i), kind_);
  }
  path_.clear();
}

void TreePin::advance(int part, int index) noexcept {
  int& from = from_[static_cast<std::size_t>(part)];
  const int end = std::min(index, depth());
  for (int i = end - 1; i >= from; --i) {
    tree_->drop_part_hold(node(i), part, kind_);
  }
  from = std::max(from, index);
}

void PrefixTree::add_hold(NodeId id, HoldKind kind) noexcept {
  Hold& hold = at(id).hold;
  const Grip before = hold.grip();
  (kind == HoldKind::PIN ? hold.pins : hold.kept) += 1;
  if (layout_.has_full()) {
    regrip(id, 0, before, hold.grip());
  }
}

void PrefixTree::drop_hold(NodeId id, HoldKind kind) noexcept {
  Hold& hold = at(id).hold;
  const Grip before = hold.grip();
  int& count = kind == HoldKind::PIN ? hold.pins : hold.kept;
  assert(count > 0);
  count -= 1;
  if (layout_.has_full()) {
    regrip(id, 0, before, hold.grip());
  }
  prune(id);
}

void PrefixTree::add_part_hold(NodeId id, int part, HoldKind kind) noexcept {
  Hold& hold = part_of(id, part).hold;
  const Grip before = hold.grip();
  (kind == HoldKind::PIN ? hold.pins : hold.kept) += 1;
  regrip(id, part, before, hold.grip());
}

void PrefixTree::drop_part_hold(NodeId id, int part, HoldKind kind) noexcept {
  Hold& hold = part_of(id, part).hold;
  const Grip before = hold.grip();
  int& count = kind == HoldKind::PIN ? hold.pins : hold.kept;
  assert(count > 0);
  count -= 1;
  regrip(id, part, before, hold.grip());
}

void PrefixTree::regrip(NodeId id, int part, Grip before, Grip after) noexcept {
  if (before == after) {
    return;
  }
  PartState& state = part_of(id, part);
  pages_[static_cast<std::size_t>(before)] -= state.pages[0];
  pages_[static_cast<std::size_t>(after)] += state.pages[0];
  releases_ += before == Grip::PINNED && state.pages[0] > 0 ? 1 : 0;
  if (after == Grip::FREE) {
    state.tick = ++tick_;
  }
  for (const Tier tier : {Tier::DEVICE, Tier::HOST}) {
    if (state.pages[index(tier)] == 0) {
      continue;
    }
    if (before == Grip::FREE) {
      list_remove(tier, id, part);
    } else if (after == Grip::FREE) {
      list_append(tier, id, part);
    }
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
    const bool held_here = is_full_part(p) || pin.depth() - 1 >= pin.from(p);
    give(node, p, held_here ? 1 : 0,
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
  for (int p = 0; p < layout_.num_parts(); ++p) {
    const Part& part = layout_.part(p);
    if (entry < part.first_entry + part.entries) {
      Page& held = page(Tier::DEVICE, node, entry);
      if (!held || hold(node, p).pins != pins) {
        return false;
      }
      std::swap(held, mine);
      return true;
    }
  }
  return false;
}

void PrefixTree::attach(Tier tier, NodeId node, int entry, Page page_in) noexcept {
  if (!page(tier, node, entry)) {
    put(tier, node, entry, std::move(page_in));
  }
}

void PrefixTree::put(Tier tier, NodeId id, int entry, Page page_in) noexcept {
  int p = 0;
  while (entry >= layout_.part(p).first_entry + layout_.part(p).entries) {
    ++p;
  }
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

void PrefixTree::drop_host(NodeId node) noexcept {
  for (int p = 0; p < layout_.num_parts(); ++p) {
    drop_pages(Tier::HOST, node, p);
  }
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
