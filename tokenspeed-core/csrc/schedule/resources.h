// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <optional>

#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "cache/slot_pool.h"
#include "schedule/config.h"
#include "schedule/counters.h"

namespace tokenspeed {

// What requests compete for.
class Resources {
 public:
  Resources(const Config& config, Counters& counters)
      : pages_(config.num_pages), slots_(config.max_seqs), counters_(counters) {
    if (config.prefix_cache) {
      tree_.emplace(pages_, config.page_size());
    }
  }

  // A free page, else the least recently used cached one; empty when every page is in use.
  Page take_page() noexcept {
    if (pages_.free() == 0 && evict_one()) {
      counters_.evictions += 1;
    }
    return pages_.take();
  }

  Slot take_slot() noexcept { return slots_.take(); }
  bool evict_one() noexcept { return tree_ && tree_->evict_one(); }

  PrefixTree* tree() noexcept { return tree_ ? &*tree_ : nullptr; }
  const PrefixTree* tree() const noexcept { return tree_ ? &*tree_ : nullptr; }
  const PagePool& pages() const noexcept { return pages_; }
  int free_slots() const noexcept { return slots_.free(); }
  int cached_pages() const noexcept { return tree_ ? tree_->evictable() : 0; }
  int available_pages() const noexcept { return pages_.free() + cached_pages(); }

 private:
  PagePool pages_;  // outlives the tree, whose nodes own pages
  std::optional<PrefixTree> tree_;
  SlotPool slots_;
  Counters& counters_;
};

}  // namespace tokenspeed
