// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <span>
#include <vector>

#include "types.h"

namespace tokenspeed {

// Hashes full pages of tokens into chained keys: the key of page i depends on the namespace and
// on every token below the end of page i. A key only finds candidates; token content decides.
class PageHasher {
 public:
  // Fewer bits make collisions likely: tests use that to show that results do not change.
  PageHasher(int page_size, int bits = 64) noexcept
      : page_size_(page_size), mask_(bits >= 64 ? ~PageKey{0} : (PageKey{1} << bits) - 1) {}

  // Appends the keys of the full pages of `tokens` that `keys` does not have yet. Never
  // allocates when `keys` has the room.
  void extend(Namespace ns, std::span<const TokenId> tokens, std::vector<PageKey>& keys) const;

 private:
  int page_size_;
  PageKey mask_;
};

}  // namespace tokenspeed
