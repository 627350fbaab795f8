// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <algorithm>

#include "cache/layout.h"
#include "config.h"
#include "types.h"

// How many pages something needs: the one home of these formulas.
namespace tokenspeed {

// The most pages that a request with the KV of `tokens` tokens holds of a group at once. A sliding
// group's window moves at a commit, while two more steps may be in flight, and cached pages are
// pinned by the block.
inline int peak_pages(const Group& group, int tokens, int max_step_tokens) noexcept {
  switch (group.kind) {
    case Kind::FULL:
      return ceil_div(tokens, group.page_size);
    case Kind::SLIDING: {
      const long block = long{group.entries} * group.page_size;
      const long span = long{group.window} - 1 + 2L * max_step_tokens + block - 1;
      const long pages = (span + group.page_size - 1) / group.page_size + 1;
      return static_cast<int>(std::min<long>(ceil_div(tokens, group.page_size), pages));
    }
    case Kind::STATE:
      return 1;
  }
  return 0;
}

inline long peak_pages(const Layout& layout, int tokens, int max_step_tokens) noexcept {
  long pages = 0;
  for (const Group& group : layout.groups()) {
    pages += peak_pages(group, tokens, max_step_tokens);
  }
  return pages;
}

// The longest page table that a request can come to have in a group.
inline int longest_table(const Config& config, const Layout& layout) noexcept {
  int longest = 1;
  for (const Group& group : layout.groups()) {
    if (group.kind == Kind::STATE) {
      continue;
    }
    const int by_length = ceil_div(config.max_model_len, group.page_size);
    longest = std::max(longest, group.kind == Kind::FULL ? std::min(by_length, config.num_pages)
                                                         : by_length);
  }
  return longest;
}

// Page copies of one step: every row may start with a copied block, or freeze its state.
inline int max_copies(const Config& config, const Layout& layout) noexcept {
  return config.prefix_cache ? config.max_seqs * layout.width() : 0;
}

// Pages of one transfer: a request's whole prefix, and at least one block.
inline int max_transfer_pages(const Config& config, const Layout& layout) noexcept {
  if (!config.prefix_cache || config.host_pages == 0) {
    return 0;
  }
  const long pages =
      long{ceil_div(config.max_model_len, layout.block_size())} * layout.width();
  return static_cast<int>(std::max<long>(layout.width(), std::min<long>(pages, config.num_pages)));
}

}  // namespace tokenspeed
