// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// The register tile of linear_int8: kRows x one panel of outputs, over all groups of k.
//
// Packed weight: panels of kPanel outputs, [panel][group][k / 4 of the group][kPanel][4], each code
// plus 128 as an unsigned byte. One panel is one sequential stream. The layout is the same for all
// instruction sets.
//
// Within a group all sums are of integers, and exact: in integers where the processor multiplies
// unsigned with signed bytes, else in floats, which hold integers up to 2^24. What the 128 add to a
// sum depends on the row alone, so that sums start from its negative.

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#include "../args.h"
#include "linear.h"
#include "vec.h"

namespace tokenspeed::cpu::TS_ISA {

#if defined(__AVX512VNNI__)
using Code = int8_t;
using Number = int32_t;
using SumVec = IntVec;
constexpr int kInt8TileRows = 12;
#else
using Code = float;
using Number = float;
using SumVec = Vec;
constexpr int kInt8TileRows = kWidth == 16 ? 12 : kWidth == 8 || kRegisters == 32 ? 3 : 1;
#endif

constexpr int kFours = kGroup / 4;
constexpr int kOffset = 128;  // what a packed code is larger by

using FourCodes = uint32_t __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));

// The rows of a tile in one group of k, as they lie in scratch memory.
struct RowGroup {
  char* at;
  int64_t height;

  static constexpr int64_t size(int64_t height) {
    return height * static_cast<int64_t>(sizeof(float) + sizeof(Number) + kGroup * sizeof(Code));
  }
  TS_INLINE float* scale() const { return reinterpret_cast<float*>(at); }
  TS_INLINE Number* start() const { return reinterpret_cast<Number*>(at) + height; }
  TS_INLINE Code* four(int64_t index, int64_t row) const {
    return reinterpret_cast<Code*>(at + height * 8) + (index * height + row) * 4;
  }
};

// Where a tile reads and writes.
struct Int8Tile {
  Tile to;               // rows, panel and depth are not used
  char* rows;            // its groups
  const uint8_t* panel;  // packed codes
  const float* scale;    // of the first group and column
  int64_t scale_stride;  // floats from group to group
  int64_t groups;
  const char* ahead;  // what to fetch into the cache while this runs
};

TS_INLINE Vec to_floats(IntVec v) { return __builtin_convertvector(v, Vec); }
TS_INLINE Vec to_floats(Vec v) { return v; }

TS_INLINE Vec load_columns(const float* from, int left) {
  if (left >= kWidth) return load(from);
  Vec v = {};
  for (int c = 0; c < left; ++c) v[c] = from[c];
  return v;
}

// Adds the products of four features: codes of a row with those of kWidth outputs.
#if defined(__AVX512VNNI__)
template <int kRows>
TS_INLINE void add_products(UintVec weights, const RowGroup& rows, int index, int column,
                            SumVec (&acc)[kRows][kPanelVecs]) {
  for (int r = 0; r < kRows; ++r) {
    const int32_t four = *reinterpret_cast<const int32_t __attribute__((may_alias))*>(
        rows.four(index, r));
    acc[r][column] = reinterpret_cast<IntVec>(
        _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(acc[r][column]),
                            reinterpret_cast<__m512i>(weights), _mm512_set1_epi32(four)));
  }
}
#else
template <int kRows>
TS_INLINE void add_products(UintVec weights, const RowGroup& rows, int index, int column,
                            SumVec (&acc)[kRows][kPanelVecs]) {
  for (int b = 0; b < 4; ++b) {
    const IntVec byte = reinterpret_cast<IntVec>(weights >> (8 * b) & 255);
    const Vec codes = __builtin_convertvector(byte, Vec);
    for (int r = 0; r < kRows; ++r) acc[r][column] += rows.four(index, r)[b] * codes;
  }
}
#endif

// Fetches `kLines` of the 8 cache lines that a group has in the panel behind this one.
template <int kRows, int kLines>
void run_int8_tile(const Int8Tile& t) {
  Vec total[kRows][kPanelVecs];
  start_tile<kRows, 1>(t.to, total);
  RowGroup rows{t.rows, kRows};
  const uint8_t* panel = t.panel;
  const float* scale = t.scale;
  const char* ahead = t.ahead;
  for (int64_t g = 0; g < t.groups; ++g) {
    SumVec acc[kRows][kPanelVecs];
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kPanelVecs; ++j) acc[r][j] = rows.start()[r] - SumVec{};
    }
    if constexpr (kLines > 0) __builtin_prefetch(scale + kPanel, 0, 2);
#pragma GCC unroll 8
    for (int i = 0; i < kFours; ++i) {
      if (i < kLines) __builtin_prefetch(ahead + i * kLine, 0, 2);
      for (int j = 0; j < kPanelVecs; ++j) {
        const UintVec weights = *reinterpret_cast<const FourCodes*>(panel + j * kWidth * 4);
        add_products<kRows>(weights, rows, i, j, acc);
      }
      panel += kPanel * 4;
    }
    for (int j = 0; j < kPanelVecs; ++j) {
      const Vec of_weight = load_columns(scale + j * kWidth, t.to.columns - j * kWidth);
      for (int r = 0; r < kRows; ++r) {
        total[r][j] += to_floats(acc[r][j]) * (of_weight * rows.scale()[r]);
      }
    }
    rows.at += RowGroup::size(kRows);
    scale += t.scale_stride;
    ahead += kFours * kLine;
  }
  store_tile<kRows, 1>(t.to, total);
}

}  // namespace tokenspeed::cpu::TS_ISA
