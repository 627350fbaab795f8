// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "cache/page_keys.h"

#include "cache/mix.h"

namespace tokenspeed {
namespace {

PageKey hash_block(PageKey parent, std::span<const TokenId> block) noexcept {
  std::uint64_t h = mix(parent, block.size());
  std::size_t i = 0;
  for (; i + 1 < block.size(); i += 2) {  // two 32-bit tokens make one word
    const auto low = static_cast<std::uint32_t>(block[i]);
    const auto high = static_cast<std::uint32_t>(block[i + 1]);
    h = mix(h, std::uint64_t{high} << 32 | low);
  }
  if (i < block.size()) {
    h = mix(h, static_cast<std::uint32_t>(block[i]));
  }
  return h;
}

}  // namespace

void PageHasher::extend(Namespace ns, std::span<const TokenId> tokens,
                        std::vector<PageKey>& keys) const {
  const auto size = static_cast<std::size_t>(block_size_);
  PageKey parent = keys.empty() ? mix(ns, seed_) : keys.back();
  for (std::size_t block = keys.size(); (block + 1) * size <= tokens.size(); ++block) {
    parent = hash_block(parent, tokens.subspan(block * size, size)) & mask_;
    keys.push_back(parent);
  }
}

}  // namespace tokenspeed
