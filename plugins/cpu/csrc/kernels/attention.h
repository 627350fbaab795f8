// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// The queries of a row, and which kernel answers them.

#include "../args.h"
#include "pages.h"

namespace tokenspeed::cpu::TS_ISA {

constexpr int64_t kFewQueries = 16;  // of a row that attend_few answers

TS_INLINE int64_t first_query(const AttentionArgs& a, int64_t row) {
  return a.query_start ? clamp<int64_t>(a.query_start[row], 0, a.tokens) : row;
}

TS_INLINE int64_t queries_of(const AttentionArgs& a, int64_t row) {
  return max_of<int64_t>(0, first_query(a, row + 1) - first_query(a, row));
}

TS_INLINE bool has_few_queries(const AttentionArgs& a, int64_t row) {
  return queries_of(a, row) <= kFewQueries;
}

// Answers the rows with few queries, each query with the same bits whatever it comes with.
int attend_few(const AttentionArgs& a);

}  // namespace tokenspeed::cpu::TS_ISA
