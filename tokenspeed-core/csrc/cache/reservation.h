// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "cache/layout.h"
#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "cache/slot_pool.h"
#include "types.h"

namespace tokenspeed {

// Everything that a running request owns on the device: its slot, the pinned prefix and its
// pages. It is built whole or not at all, only moved, and its end gives everything back.
//
//   blocks   [0 ....... matched) [matched ....... published) [published ....... size)
//   owner     tree, pinned here   tree, pinned here           this reservation
//
// Publishing moves the border `published` to the right, one block at a time. Where the tree had
// an equal page that others read, this reservation keeps its own page below the border, as a
// "twin" of the tree's: the device table names it, so it stays as long as the request runs.
//
// A sliding group owns only what its window still covers. A state group has one live page, which
// every step overwrites; at the end of a block it is frozen, to become the block's checkpoint, and
// the row goes on with a copy.
class Reservation {
 public:
  // `max_tokens`: the most tokens whose KV the request can come to need.
  Reservation(Slot slot, TreePin pin, const Layout& layout, int max_tokens);
  Reservation(Reservation&&) noexcept = default;
  Reservation& operator=(Reservation&&) noexcept = default;

  const Slot& slot() const noexcept { return slot_; }
  const TreePin& pin() const noexcept { return pin_; }
  TreePin& pin() noexcept { return pin_; }
  int matched() const noexcept { return matched_; }
  int published() const noexcept { return pin_.depth(); }

  // Table entries of a group that is not a state group, those of the tree included.
  int size(int group) const noexcept {
    const Table& table = tables_[static_cast<std::size_t>(group)];
    return table.first + static_cast<int>(table.pages.size());
  }
  // Of these, the device was told: its page table holds them. The rest goes with the next row.
  int told(int group) const noexcept { return tables_[static_cast<std::size_t>(group)].told; }
  void set_told(int group) noexcept {
    tables_[static_cast<std::size_t>(group)].told = size(group);
  }
  // What the table entry must hold; the null page where a sliding window has passed.
  PageId entry(const PrefixTree* tree, int group, int index) const noexcept;

  void append(int group, Page page) noexcept {
    tables_[static_cast<std::size_t>(group)].pages.push_back(std::move(page));
  }

  // The block whose first `tokens` tokens the request copies stays until the copy has run.
  void keep_source(TreePin source, int tokens) noexcept {
    source_ = std::move(source);
    source_tokens_ = tokens;
  }
  // visit(source, target) for the copies that must run before the first row: of the state at the
  // end of the matched prefix, and of the block that was matched in part.
  template <class F>
  void for_each_copy(const PrefixTree& tree, F&& visit) const;
  void drop_source() noexcept { source_.reset(); }

  // The next block goes to the tree. False when the tree cannot take it, now and later.
  bool publish_next(PrefixTree& tree, const BlockContent& content) noexcept;

  // The pages of the block after the published ones, for its tail; empty entries where none is.
  void take_tail(std::span<Page> pages, int tokens) noexcept;

  // Gives back what no query at or after `position` reads. True if a page came free.
  bool reclaim(int position) noexcept;

  // Gives every twin that only this request still pins to the tree, freeing the tree's equal
  // page. A request that runs alone thereby holds no page twice. True if a page came free.
  bool fold_twins(PrefixTree& tree) noexcept;

  // State groups: live page i belongs to the i-th of them.
  std::vector<Page>& live() noexcept { return live_; }
  std::vector<Page>& frozen() noexcept { return frozen_; }
  int frozen_at() const noexcept { return frozen_at_; }
  bool has_frozen() const noexcept { return frozen_at_ >= 0 || (!frozen_.empty() && frozen_[0]); }
  // The frozen pages hold the state at `boundary`, the end of a block, published or not yet.
  void freeze(PrefixTree& tree, int boundary) noexcept;
  // A commit: what copied from the last checkpoint has run, so it need not stay for this request.
  void release_checkpoint() noexcept;

  // How many blocks were handed to the host tier already, or were there.
  int stored() const noexcept { return stored_; }
  void set_stored(int blocks) noexcept { stored_ = blocks; }

  // A group's page table as the device has it, for verification. O(context).
  std::vector<PageId> page_table(const PrefixTree* tree, int group) const;

  // For the ledger: the ids of the pages owned here (not the pinned ones).
  template <class F>
  void for_each_page(F&& visit) const {
    for (const Table& table : tables_) {
      for (const Page& page : table.pages) {
        if (page) visit(page.id());
      }
    }
    for (const Page& page : live_) {
      if (page) visit(page.id());
    }
    for (const Page& page : frozen_) {
      if (page) visit(page.id());
    }
  }
  template <class F>
  void for_each_pin(F&& visit) const {
    if (pin_) visit(pin_);
    if (source_) visit(source_);
  }

 private:
  struct Table {
    int first = 0;            // index of pages[0]
    int passed = 0;           // indices below are not needed any more
    int told = 0;             // the device has the entries below
    std::vector<Page> pages;  // published ones are empty or twins
  };

  const std::vector<Page>& pages_of(int group) const noexcept {
    return tables_[static_cast<std::size_t>(group)].pages;
  }
  Page& own(int group, int index) noexcept {
    Table& table = tables_[static_cast<std::size_t>(group)];
    return table.pages[static_cast<std::size_t>(index - table.first)];
  }
  template <class F>
  void for_each_own_in_block(int block, F&& visit) noexcept;

  const Layout* layout_;
  Slot slot_;
  TreePin pin_;
  TreePin source_;
  int source_tokens_ = 0;
  int matched_;
  int stored_;
  int twins_ = 0;
  std::vector<Table> tables_;  // per group; empty for state groups
  std::vector<Page> live_;
  std::vector<Page> frozen_;
  int frozen_at_ = -1;
};

template <class F>
void Reservation::for_each_copy(const PrefixTree& tree, F&& visit) const {
  std::size_t state = 0;
  for (int g = 0; g < layout_->num_groups(); ++g) {
    const Group& group = layout_->group(g);
    if (group.kind == Kind::STATE) {
      const Page& live = live_[state++];
      if (matched_ > 0) {
        visit(tree.page_of(pin_.node(matched_ - 1), group.first_entry), live.id());
      }
      continue;
    }
    for (int j = 0; source_ && j * group.page_size < source_tokens_; ++j) {
      const Page& target = pages_of(g)[static_cast<std::size_t>(j)];
      if (target) {
        visit(tree.page_of(source_.tip(), group.first_entry + j), target.id());
      }
    }
  }
}

}  // namespace tokenspeed
