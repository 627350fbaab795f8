// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// Where a token's keys and values lie.

#include "../args.h"
#include "vec.h"

namespace tokenspeed::cpu::TS_ISA {

// A row of a page table. Ids that no page has, and positions that no row has, lead to page 0.
struct PageRow {
  const int32_t* pages;
  int64_t count, limit;

  PageRow(const Pages& c, int64_t slot)
      : pages(c.table + clamp<int64_t>(slot, 0, c.slots - 1) * c.table_stride),
        count(c.max_pages),
        limit(c.pages) {}

  int64_t at(int64_t index) const {
    if (index < 0 || index >= count) return 0;
    const int64_t page = pages[index];
    return page < 0 || page >= limit ? 0 : page;
  }
};

// Addresses of the keys and values of one kv head for tokens [first, first + count).
inline void locate(const Pages& c, const PageRow& row, int64_t head, int64_t first, int64_t count,
                   const float** keys, const float** values) {
  for (int64_t i = 0; i < count;) {
    const int64_t page = row.at((first + i) / c.page_size);
    int64_t offset = (first + i) % c.page_size;
    const float* k = c.keys + page * c.k_page + head * c.k_head;
    const float* v = c.values + page * c.v_page + head * c.v_head;
    for (; i < count && offset < c.page_size; ++i, ++offset) {
      keys[i] = k + offset * c.k_token;
      values[i] = v + offset * c.v_token;
    }
  }
}

// Tokens of a row that its page table can hold.
TS_INLINE int64_t length_of(const Pages& c, int64_t kv_len) {
  return clamp<int64_t>(kv_len, 0, c.max_pages * c.page_size);
}

TS_INLINE void copy(const float* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(to + i, load(from + i));
  for (; i < n; ++i) to[i] = from[i];
}

}  // namespace tokenspeed::cpu::TS_ISA
