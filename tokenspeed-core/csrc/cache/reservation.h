// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <utility>
#include <vector>

#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "cache/slot_pool.h"
#include "types.h"

namespace tokenspeed {

// Everything that a running request owns on the device: its slot, the pinned prefix and its
// pages. It is built whole or not at all, only moved, and its end gives everything back.
//
//   table index   [0 ....... matched) [matched ....... published) [published ....... size)
//   owner          tree, pinned here   tree, pinned here           this reservation
//
// Publishing moves the border `published` to the right, one page at a time. Where the tree had
// an equal page that others read, this reservation keeps its own page below the border, as a
// "twin" of that node: the device table names it, so it stays as long as the request runs.
class Reservation {
 public:
  // `capacity`: the most table entries that the request can come to need.
  Reservation(Slot slot, TreePin pin, int capacity);
  Reservation(Reservation&&) noexcept = default;
  Reservation& operator=(Reservation&&) noexcept = default;

  const Slot& slot() const noexcept { return slot_; }
  const TreePin& pin() const noexcept { return pin_; }
  int matched() const noexcept { return matched_; }
  int published() const noexcept { return pin_.depth(); }
  int size() const noexcept { return matched_ + static_cast<int>(pages_.size()); }

  // The page of a table entry at or above `published`.
  PageId page_at(int index) const noexcept { return own(index).id(); }

  void append(Page page) noexcept { pages_.push_back(std::move(page)); }
  void publish_next(PrefixTree& tree, const PageContent& content) noexcept;

  // Gives every twin that only this request still pins to the tree, freeing the tree's equal
  // page. A request that runs alone thereby holds no page twice. True if a page came free.
  bool fold_twins(PrefixTree& tree) noexcept;

  // The request's page table as the device has it, for verification. O(context).
  std::vector<PageId> page_table(const PrefixTree* tree) const;

  // For the ledger: the ids of the pages owned here (not the pinned ones).
  template <class F>
  void for_each_page(F&& visit) const {
    for (const Page& page : pages_) {
      if (page) visit(page.id());
    }
  }

 private:
  Page& own(int index) noexcept { return pages_[static_cast<std::size_t>(index - matched_)]; }
  const Page& own(int index) const noexcept {
    return pages_[static_cast<std::size_t>(index - matched_)];
  }

  Slot slot_;
  TreePin pin_;
  int matched_;
  int twins_ = 0;
  std::vector<Page> pages_;  // of table index matched + i; published ones are empty or twins
};

}  // namespace tokenspeed
