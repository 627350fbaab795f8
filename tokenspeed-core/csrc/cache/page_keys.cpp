// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "cache/page_keys.h"

#include "cache/mix.h"

namespace tokenspeed {
namespace {

PageKey hash_page(PageKey parent, std::span<const TokenId> page) noexcept {
  std::uint64_t h = mix(parent, page.size());
  std::size_t i = 0;
  for (; i + 1 < page.size(); i += 2) {  // two 32-bit tokens make one word
    const auto low = static_cast<std::uint32_t>(page[i]);
    const auto high = static_cast<std::uint32_t>(page[i + 1]);
    h = mix(h, std::uint64_t{high} << 32 | low);
  }
  if (i < page.size()) {
    h = mix(h, static_cast<std::uint32_t>(page[i]));
  }
  return h;
}

}  // namespace

void PageHasher::extend(Namespace ns, std::span<const TokenId> tokens,
                        std::vector<PageKey>& keys) const {
  const auto size = static_cast<std::size_t>(page_size_);
  PageKey parent = keys.empty() ? mix(ns, 0) : keys.back();
  for (std::size_t page = keys.size(); (page + 1) * size <= tokens.size(); ++page) {
    parent = hash_page(parent, tokens.subspan(page * size, size)) & mask_;
    keys.push_back(parent);
  }
}

}  // namespace tokenspeed
