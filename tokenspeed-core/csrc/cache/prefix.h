// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <algorithm>
#include <span>

#include "types.h"

namespace tokenspeed {

// What identifies one block of a prefix besides its parent.
struct BlockContent {
  PageKey key;
  Namespace ns;
  std::span<const TokenId> tokens;  // exactly one block of them
};

// A token sequence as the tree reads it: keys[i] belongs to block i of tokens.
struct Prefix {
  Namespace ns;
  std::span<const TokenId> tokens;
  std::span<const PageKey> keys;

  BlockContent block(int index, int block_size) const noexcept {
    const auto i = static_cast<std::size_t>(index);
    const auto size = static_cast<std::size_t>(block_size);
    return {keys[i], ns, tokens.subspan(i * size, size)};
  }
};

// How many children of a node are compared for a hit inside a block: the newest ones.
inline constexpr int kMaxSiblings = 16;

inline int common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) noexcept {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return static_cast<int>(end - a.begin());
}

}  // namespace tokenspeed
