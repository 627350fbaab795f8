// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <span>
#include <vector>

#include "types.h"

namespace tokenspeed {

// Hashes full blocks of tokens into chained keys: the key of block i depends on the namespace and
// on every token below the end of block i. A key only finds candidates; token content decides.
class PageHasher {
 public:
  // Fewer bits make collisions likely: tests use that to show that results do not change.
  PageHasher(int block_size, int bits = 64, std::uint64_t seed = 0) noexcept
      : block_size_(block_size),
        seed_(seed),
        mask_(bits >= 64 ? ~PageKey{0} : (PageKey{1} << bits) - 1) {}

  // Appends the keys of the full blocks of `tokens` that `keys` does not have yet. Never
  // allocates when `keys` has the room.
  void extend(Namespace ns, std::span<const TokenId> tokens, std::vector<PageKey>& keys) const;

 private:
  int block_size_;
  std::uint64_t seed_;
  PageKey mask_;
};

}  // namespace tokenspeed
