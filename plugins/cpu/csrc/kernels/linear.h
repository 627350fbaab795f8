// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// The register tile of linear: kRows x kPanels panels of outputs, accumulated over a run of k.
//
// Packed weight: panels of kPanel outputs, [panel][k][kPanel], zeros behind the last output. One
// panel is one sequential stream, so a call with few rows reads the weight once, at the speed of
// memory; and a tile of two panels by many rows keeps the multipliers busy when rows are many. So
// one copy serves decode and prefill. The layout is the same for every instruction set.

#include "../args.h"
#include "vec.h"

namespace tokenspeed::cpu::TS_ISA {

constexpr int kPanelVecs = kPanel / kWidth;
constexpr int kMaxTileRows = kWidth == 16 ? 16 : kWidth == 8 || kRegisters == 32 ? 6 : 3;

// Where a tile reads and writes.
struct Tile {
  const float* rows;     // packed activations [k][tile rows]
  const float* panel;    // first panel, at the first k
  int64_t panel_stride;  // floats from one panel to the next
  int64_t depth;         // k in this run
  float* out;            // first row and column
  int64_t out_stride;    // floats from row to row
  const float* bias;     // of these columns, or null
  int columns;           // columns that exist
  bool accumulate;       // add to `out` instead of starting from the bias
  const char* ahead;     // what to fetch into the cache while this runs, or null
};

constexpr int kLine = 64;

template <int kRows, int kPanels>
TS_INLINE void store_tile(const Tile& t, const Vec (&acc)[kRows][kPanels * kPanelVecs]) {
  for (int i = 0; i < kRows; ++i) {
    float* out = t.out + i * t.out_stride;
    for (int j = 0; j < kPanels * kPanelVecs; ++j) {
      const int left = t.columns - j * kWidth;
      if (left >= kWidth) {
        store(out + j * kWidth, acc[i][j]);
      } else {
        for (int c = 0; c < left; ++c) out[j * kWidth + c] = acc[i][j][c];
      }
    }
  }
}

template <int kRows, int kPanels>
TS_INLINE void start_tile(const Tile& t, Vec (&acc)[kRows][kPanels * kPanelVecs]) {
  const float* from = t.accumulate ? t.out : t.bias;
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kPanels * kPanelVecs; ++j) {
      const int left = from ? t.columns - j * kWidth : 0;
      Vec start = {};
      if (left >= kWidth) {
        start = load(from + j * kWidth);
      } else {
        for (int c = 0; c < left; ++c) start[c] = from[j * kWidth + c];
      }
      acc[i][j] = start;
    }
    if (t.accumulate) from += t.out_stride;
  }
}

template <int kRows, int kPanels>
TS_INLINE void multiply(const float* rows, const float* panel, int64_t panel_stride,
                        Vec (&acc)[kRows][kPanels * kPanelVecs]) {
  Vec w[kPanels * kPanelVecs];
  for (int p = 0; p < kPanels; ++p) {
    for (int j = 0; j < kPanelVecs; ++j) {
      w[p * kPanelVecs + j] = load(panel + p * panel_stride + j * kWidth);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    const Vec x = splat(rows[i]);
    for (int j = 0; j < kPanels * kPanelVecs; ++j) acc[i][j] += x * w[j];
  }
}

// Fetches `kLinesPerFour` cache lines for every four k.
template <int kRows, int kPanels, int kLinesPerFour>
void run_tile(const Tile& t) {
  Vec acc[kRows][kPanels * kPanelVecs];
  start_tile<kRows, kPanels>(t, acc);
  const float* rows = t.rows;
  const float* panel = t.panel;
  const char* ahead = t.ahead;
  int64_t k = 0;
  for (; k + 4 <= t.depth; k += 4) {
    for (int line = 0; line < kLinesPerFour; ++line) __builtin_prefetch(ahead + line * kLine, 0, 2);
    ahead += kLinesPerFour * kLine;
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      multiply<kRows, kPanels>(rows + u * kRows, panel + u * kPanel, t.panel_stride, acc);
    }
    rows += 4 * kRows;
    panel += 4 * kPanel;
  }
  for (; k < t.depth; ++k, rows += kRows, panel += kPanel) {
    multiply<kRows, kPanels>(rows, panel, t.panel_stride, acc);
  }
  store_tile<kRows, kPanels>(t, acc);
}

// One row: four accumulators hide the latency of the multiply-add.
template <int kAhead>
void run_row(const Tile& t) {
  Vec acc[1][kPanelVecs];
  start_tile<1, 1>(t, acc);
  Vec more[4][1][kPanelVecs] = {};
  const float* panel = t.panel;
  int64_t k = 0;
  for (; k + 4 <= t.depth; k += 4, panel += 4 * kPanel) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      __builtin_prefetch(panel + u * kPanel + kAhead, 0, 2);
      multiply<1, 1>(t.rows + k + u, panel + u * kPanel, 0, more[u]);
    }
  }
  for (; k < t.depth; ++k, panel += kPanel) multiply<1, 1>(t.rows + k, panel, 0, acc);
  for (int j = 0; j < kPanelVecs; ++j) {
    acc[0][j] += (more[0][0][j] + more[1][0][j]) + (more[2][0][j] + more[3][0][j]);
  }
  store_tile<1, 1>(t, acc);
}

}  // namespace tokenspeed::cpu::TS_ISA
