// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// Candidates of a draw as one integer each, so that selecting and sorting compare integers.
//
// Upper half: the logit, mapped so that integers order as floats do. Lower half: the id, inverted,
// so that of equal logits the lower id is the larger candidate.

#include "vec.h"

namespace tokenspeed::cpu::TS_ISA {

using Candidate = uint64_t;

TS_INLINE Candidate make_candidate(float logit, int64_t id) {
  const uint32_t raw = __builtin_bit_cast(uint32_t, logit + 0.0f);  // -0 becomes 0
  const uint32_t ordered = raw & 0x80000000u ? ~raw : raw | 0x80000000u;
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(~static_cast<uint32_t>(id));
}

TS_INLINE float logit_of(Candidate c) {
  const uint32_t ordered = static_cast<uint32_t>(c >> 32);
  return __builtin_bit_cast(float, ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

TS_INLINE int64_t id_of(Candidate c) { return static_cast<uint32_t>(~static_cast<uint32_t>(c)); }

inline void insertion_sort(Candidate* c, int64_t n) {
  for (int64_t i = 1; i < n; ++i) {
    const Candidate x = c[i];
    int64_t j = i;
    for (; j > 0 && c[j - 1] < x; --j) c[j] = c[j - 1];
    c[j] = x;
  }
}

// Puts candidates not below a pivot in front; returns where the others start, in [1, n). n >= 2.
inline int64_t partition(Candidate* c, int64_t n) {
  const Candidate a = c[0], m = c[n / 2], z = c[n - 1];
  const Candidate pivot = a < m ? (m < z ? m : a < z ? z : a) : (a < z ? a : m < z ? z : m);
  int64_t i = -1, j = n;
  for (;;) {
    while (c[++i] > pivot) {
    }
    while (c[--j] < pivot) {
    }
    if (i >= j) return j + 1;
    const Candidate swap = c[i];
    c[i] = c[j];
    c[j] = swap;
  }
}

// Sorts the `wanted` largest of n candidates to the front, in descending order.
inline void sort_top(Candidate* c, int64_t n, int64_t wanted) {
  while (n > 24) {
    if (wanted <= 0) return;
    const int64_t middle = partition(c, n);
    if (middle < wanted) {
      sort_top(c + middle, n - middle, wanted - middle);
      wanted = middle;
    }
    n = middle;
  }
  insertion_sort(c, n);
}

}  // namespace tokenspeed::cpu::TS_ISA
