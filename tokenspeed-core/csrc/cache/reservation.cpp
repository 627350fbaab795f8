// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "cache/reservation.h"

namespace tokenspeed {

Reservation::Reservation(Slot slot, TreePin pin, int capacity)
    : slot_(std::move(slot)), pin_(std::move(pin)), matched_(pin_.depth()) {
  pages_.reserve(static_cast<std::size_t>(capacity - matched_));
}

void Reservation::publish_next(PrefixTree& tree, const PageContent& content) noexcept {
  Page& page = own(published());
  page = tree.publish(pin_, content, std::move(page));
  twins_ += page ? 1 : 0;
}

// The pinned path names the nodes: the node at depth i + 1 is the one of table index i.
bool Reservation::fold_twins(PrefixTree& tree) noexcept {
  bool freed = false;
  NodeId node = pin_.tip();
  for (int index = published() - 1; twins_ > 0 && index >= matched_; --index) {
    Page& page = own(index);
    if (page && tree.exchange(node, page, 1)) {
      page.reset();
      twins_ -= 1;
      freed = true;
    }
    node = tree.parent_of(node);
  }
  return freed;
}

// A twin stands before the tree's page: it is what the device was told.
std::vector<PageId> Reservation::page_table(const PrefixTree* tree) const {
  std::vector<PageId> table(static_cast<std::size_t>(size()));
  NodeId node = pin_.tip();
  for (int index = size() - 1; index >= 0; --index) {
    PageId& entry = table[static_cast<std::size_t>(index)];
    if (index < published()) {
      entry = tree->page_of(node);
      node = tree->parent_of(node);
    }
    if (index >= matched_ && own(index)) {
      entry = own(index).id();
    }
  }
  return table;
}

}  // namespace tokenspeed
