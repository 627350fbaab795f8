// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "cache/page_pool.h"

namespace tokenspeed {

PagePool::PagePool(int num_pages) : total_(num_pages) {
  free_.reserve(static_cast<std::size_t>(num_pages));
  for (PageId id = num_pages; id >= 1; --id) {
    free_.push_back(id);  // so that page 1 is taken first
  }
}

Page PagePool::take() noexcept {
  if (free_.empty()) {
    return {};
  }
  const PageId id = free_.back();
  free_.pop_back();
  return Page(this, id);
}

void PagePool::give_back(PageId id) noexcept {
  assert(id >= 1 && id <= total_ && free() < total_);
  free_.push_back(id);
  returns_ += 1;
}

}  // namespace tokenspeed
