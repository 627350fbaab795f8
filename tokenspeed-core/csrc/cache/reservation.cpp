// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "cache/reservation.h"

#include <algorithm>
#include <limits>

namespace tokenspeed {
namespace {

constexpr int kNowhere = std::numeric_limits<int>::max();  // behind every node

}  // namespace

Reservation::Reservation(Slot slot, TreePin pin, const Layout& layout, int max_tokens)
    : layout_(&layout),
      slot_(std::move(slot)),
      pin_(std::move(pin)),
      matched_(pin_.depth()),
      stored_(pin_.depth()),
      tables_(layout.groups().size()) {
  for (int g = 0; g < layout.num_groups(); ++g) {
    const Group& group = layout.group(g);
    Table& table = tables_[static_cast<std::size_t>(g)];
    if (group.kind == Kind::STATE) {
      live_.emplace_back();
      frozen_.emplace_back();
      continue;
    }
    table.first = table.passed = matched_ * group.entries;
    table.pages.reserve(
        static_cast<std::size_t>(ceil_div(max_tokens, group.page_size) - table.first));
  }
}

// visit(entry, page) for the pages of a block that this reservation has entries for.
template <class F>
void Reservation::for_each_own_in_block(int block, F&& visit) noexcept {
  for (int g = 0; g < layout_->num_groups(); ++g) {
    const Group& group = layout_->group(g);
    if (group.kind == Kind::STATE) {
      continue;
    }
    const int end = std::min((block + 1) * group.entries, size(g));
    for (int index = block * group.entries; index < end; ++index) {
      visit(group.first_entry + index - block * group.entries, own(g, index));
    }
  }
}

bool Reservation::publish_next(PrefixTree& tree, const BlockContent& content) noexcept {
  const int block = published();
  const std::span<Page> staging = tree.staging();
  for_each_own_in_block(block, [&](int entry, Page& page) {
    staging[static_cast<std::size_t>(entry)] = std::move(page);
  });
  const bool checkpoint = frozen_at_ == (block + 1) * layout_->block_size();
  const auto state = layout_->has_state()
                         ? staging.subspan(static_cast<std::size_t>(
                               layout_->part(layout_->state_part()).first_entry))
                         : std::span<Page>{};
  if (checkpoint) {
    std::move(frozen_.begin(), frozen_.end(), state.begin());
  }
  const bool published = tree.publish(pin_, content, staging);
  for_each_own_in_block(block, [&](int entry, Page& page) {
    page = std::move(staging[static_cast<std::size_t>(entry)]);
    twins_ += published && page ? 1 : 0;
  });
  if (checkpoint) {  // what the tree did not want may be read by a copy until the next commit
    std::move(state.begin(), state.end(), frozen_.begin());
    frozen_at_ = -1;
    tree.hold_checkpoint(pin_);
  }
  return published;
}

void Reservation::take_tail(std::span<Page> pages, int tokens) noexcept {
  const int block = published();
  for_each_own_in_block(block, [&](int entry, Page& page) {
    for (const Group& group : layout_->groups()) {
      const int j = entry - group.first_entry;
      if (j >= 0 && j < group.entries && j * group.page_size < tokens) {
        pages[static_cast<std::size_t>(entry)] = std::move(page);
      }
    }
  });
}

bool Reservation::reclaim(int position) noexcept {
  bool freed = false;
  for (int g = 0; g < layout_->num_groups(); ++g) {
    const Group& group = layout_->group(g);
    if (group.kind != Kind::SLIDING) {
      continue;
    }
    Table& table = tables_[static_cast<std::size_t>(g)];
    const int read = Layout::first_read(group.kind, group.window, position);
    const int passed = std::min(read / group.page_size, size(g));
    for (; table.passed < passed; ++table.passed) {
      Page& page = own(g, table.passed);
      freed |= static_cast<bool>(page);
      twins_ -= page && table.passed < published() * group.entries ? 1 : 0;
      page.reset();
    }
    if (pin_) {
      pin_.advance(group.part, std::min(read / layout_->block_size(), published()));
    }
  }
  return freed;
}

bool Reservation::fold_twins(PrefixTree& tree) noexcept {
  bool freed = false;
  for (int block = published() - 1; twins_ > 0 && block >= matched_; --block) {
    for_each_own_in_block(block, [&](int entry, Page& page) {
      if (page && tree.exchange(pin_.node(block), entry, page, 1)) {
        page.reset();
        twins_ -= 1;
        freed = true;
      }
    });
  }
  return freed;
}

void Reservation::freeze(PrefixTree& tree, int boundary) noexcept {
  if (boundary > published() * layout_->block_size()) {
    frozen_at_ = boundary;
    return;
  }
  int entry = layout_->part(layout_->state_part()).first_entry;
  for (Page& page : frozen_) {
    if (tree.page_of(pin_.tip(), entry) == kNullPage) {
      tree.attach(Tier::DEVICE, pin_.tip(), entry, std::move(page));
    }
    ++entry;
  }
  tree.hold_checkpoint(pin_);
}

void Reservation::release_checkpoint() noexcept {
  if (!layout_->has_state()) {
    return;
  }
  if (frozen_at_ < 0) {
    for (Page& page : frozen_) {
      page.reset();
    }
  }
  if (pin_) {
    pin_.advance(layout_->state_part(), kNowhere);
  }
}

// A twin stands before the tree's page: it is what the device was told.
PageId Reservation::entry(const PrefixTree* tree, int g, int index) const noexcept {
  const Group& group = layout_->group(g);
  const Table& table = tables_[static_cast<std::size_t>(g)];
  if (index >= table.first) {
    if (index < table.passed) {
      return kNullPage;
    }
    if (const Page& page = table.pages[static_cast<std::size_t>(index - table.first)]) {
      return page.id();
    }
  }
  const int block = index / group.entries;
  const bool held = block < published() && pin_.holds(group.part, block);
  return held ? tree->page_of(pin_.node(block), group.first_entry + index % group.entries)
              : kNullPage;
}

std::vector<PageId> Reservation::page_table(const PrefixTree* tree, int g) const {
  if (layout_->group(g).kind == Kind::STATE) {
    return {live_[static_cast<std::size_t>(layout_->state_index(g))].id()};
  }
  std::vector<PageId> ids(static_cast<std::size_t>(size(g)));
  for (int index = 0; index < size(g); ++index) {
    ids[static_cast<std::size_t>(index)] = entry(tree, g, index);
  }
  return ids;
}

}  // namespace tokenspeed
