// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <algorithm>

#include "cache/prefix_tree.h"

// Who holds what of the tree.
namespace tokenspeed {

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
    for (int p = layout_.first_ranged_part(); p < layout_.num_parts(); ++p) {
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
  for (int p = layout_.first_ranged_part(); p < layout_.num_parts(); ++p) {
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
    for (int p = tree->layout_.first_ranged_part(); p < tree->layout_.num_parts(); ++p) {
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

}  // namespace tokenspeed
