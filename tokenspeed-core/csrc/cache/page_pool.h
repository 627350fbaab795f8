// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cassert>
#include <span>
#include <utility>
#include <vector>

#include "types.h"

namespace tokenspeed {

class PagePool;

// The right to one page. Losing it gives the page back; it cannot be copied, so no page ever
// has two owners. An empty Page owns nothing.
class [[nodiscard]] Page {
 public:
  Page() noexcept = default;
  Page(Page&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(std::exchange(other.id_, kNullPage)) {}
  Page& operator=(Page&& other) noexcept {
    if (this != &other) {
      reset();
      pool_ = std::exchange(other.pool_, nullptr);
      id_ = std::exchange(other.id_, kNullPage);
    }
    return *this;
  }
  ~Page() { reset(); }

  void reset() noexcept;
  PageId id() const noexcept { return id_; }
  explicit operator bool() const noexcept { return pool_ != nullptr; }

 private:
  friend class PagePool;
  Page(PagePool* pool, PageId id) noexcept : pool_(pool), id_(id) {}

  PagePool* pool_ = nullptr;
  PageId id_ = kNullPage;
};

// The device pages 1..num_pages that nobody owns. Last in, first out: the page that was used
// last is the warmest, and the order is the same on every rank.
class PagePool {
 public:
  explicit PagePool(int num_pages);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool() { assert(free() == total_ && "a page outlived its pool"); }

  // An empty Page when none is free.
  Page take() noexcept;

  int free() const noexcept { return static_cast<int>(free_.size()); }
  int total() const noexcept { return total_; }
  std::span<const PageId> free_pages() const noexcept { return free_; }
  // How many pages came back, ever.
  std::uint64_t returns() const noexcept { return returns_; }

 private:
  friend class Page;
  void give_back(PageId id) noexcept;

  int total_;
  std::uint64_t returns_ = 0;
  std::vector<PageId> free_;  // a stack with room for every page: giving back never allocates
};

inline void Page::reset() noexcept {
  if (pool_ != nullptr) {
    std::exchange(pool_, nullptr)->give_back(std::exchange(id_, kNullPage));
  }
}

}  // namespace tokenspeed
