// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "linear.h"

#include "../args.h"
#include "../pool.h"
#include "kernels.h"

namespace tokenspeed::cpu::TS_ISA {
namespace {

using Run = void (*)(const Tile&);

// Tiles by rows; a template argument each, so that accumulators stay in registers.
template <int kPanels, int kLines, int... kRows>
struct TileTable {
  static constexpr Run runs[] = {nullptr, run_tile<kRows, kPanels, kLines>...};
};

#if defined(__AVX512F__)
template <int kLines>
using Narrow = TileTable<1, kLines, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16>;
constexpr int kWideRows = 12;
constexpr int kWidePanels = 2;
using Wide = TileTable<2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>;
#elif defined(__AVX2__) || defined(__aarch64__)
template <int kLines>
using Narrow = TileTable<1, kLines, 1, 2, 3, 4, 5, 6>;
constexpr int kWideRows = 6;
constexpr int kWidePanels = 1;
using Wide = Narrow<0>;
#else
template <int kLines>
using Narrow = TileTable<1, kLines, 1, 2, 3>;
constexpr int kWideRows = 3;
constexpr int kWidePanels = 1;
using Wide = Narrow<0>;
#endif

constexpr int64_t kRowAhead = 1024;         // floats that one row fetches ahead
constexpr int64_t kAheadBytes = 16 * 1024;  // what few rows fetch ahead
constexpr int64_t kDepth = 1024;            // k of one run with many tiles: its panels stay in L2

int64_t panels_of(int64_t n) { return (n + kPanel - 1) / kPanel; }

// The rows of a call as tiles of equal height (the last may be lower).
struct Split {
  int64_t rows, height, panels;  // panels: of a tile
  // Floats of one packed tile. Packing may write up to a vector behind its rows, not into the next.
  int64_t tile_size(int64_t k) const { return height * k + kWidth; }
  int64_t tiles() const { return (rows + height - 1) / height; }
  int64_t height_of(int64_t tile) const { return min_of(height, rows - tile * height); }
};

Split split_rows(int64_t rows) {
  if (rows <= kMaxTileRows) return {rows, rows, 1};
  if (rows <= 2 * kMaxTileRows) return {rows, (rows + 1) / 2, 1};
  return {rows, kWideRows, kWidePanels};
}

// Lays `height` rows out as [k][height]. Each square of a transpose writes a full vector; what it
// writes past `height` belongs to the next k, which is written later.
void pack_rows(const float* x, int64_t stride, int64_t height, int64_t depth, float* out) {
  int64_t k = 0;
  for (; k + kWidth <= depth; k += kWidth) {
    for (int64_t block = (height - 1) / kWidth * kWidth; block >= 0; block -= kWidth) {
      Vec square[kWidth] = {};
      const int64_t count = min_of<int64_t>(kWidth, height - block);
      for (int64_t i = 0; i < count; ++i) square[i] = load(x + (block + i) * stride + k);
      transpose(square);
      for (int64_t i = 0; i < kWidth; ++i) store(out + (k + i) * height + block, square[i]);
    }
  }
  for (; k < depth; ++k) {
    for (int64_t i = 0; i < height; ++i) out[k * height + i] = x[i * stride + k];
  }
}

void pack_tiles(const LinearArgs& a, const Split& split, float* packed) {
  parallel(split.tiles(), max_of<int64_t>(1, 32768 / (split.height * a.k)),
           [&](int64_t begin, int64_t end) {
             for (int64_t t = begin; t < end; ++t) {
               pack_rows(a.x + t * split.height * a.x_stride, a.x_stride, split.height_of(t), a.k,
                         packed + t * split.tile_size(a.k));
             }
           });
}

Run narrow(int64_t height, int64_t tiles) {
  return tiles == 1 ? Narrow<4>::runs[height] : Narrow<2>::runs[height];
}

// All rows times the panels [begin, end).
void run_panels(const LinearArgs& a, const Split& split, const float* rows, int64_t begin,
                int64_t end) {
  const int64_t tiles = split.tiles();
  const int64_t panel_size = a.k * kPanel;
  for (int64_t p = begin; p < end; p += split.panels) {
    const bool wide = split.panels > 1 && p + 1 < end;
    const int64_t wanted = split.panels;
    for (int64_t sub = 0; sub < (wide ? 1 : min_of(wanted, end - p)); ++sub) {
      const int64_t column = (p + sub) * kPanel;
      const int64_t width = wide ? wanted * kPanel : kPanel;
      for (int64_t k = 0; k < a.k; k += kDepth) {
        for (int64_t t = 0; t < tiles; ++t) {
          const int64_t first = t * split.height, height = split.height_of(t);
          const float* panel = a.packed + (p + sub) * panel_size + k * kPanel;
          const Tile tile{rows + t * split.tile_size(a.k) + k * height,
                          panel,
                          panel_size,
                          min_of(kDepth, a.k - k),
                          a.out + first * a.out_stride + column,
                          a.out_stride,
                          a.bias ? a.bias + column : nullptr,
                          static_cast<int>(min_of(width, a.n - column)),
                          k > 0,
                          reinterpret_cast<const char*>(panel) + kAheadBytes};
          (wide ? Wide::runs[height] : narrow(height, tiles))(tile);
        }
      }
    }
  }
}

void run_one_row(const LinearArgs& a, int64_t begin, int64_t end) {
  for (int64_t p = begin; p < end; ++p) {
    const int64_t column = p * kPanel;
    run_row<kRowAhead>({a.x, a.packed + p * a.k * kPanel, 0, a.k, a.out + column, a.out_stride,
                        a.bias ? a.bias + column : nullptr,
                        static_cast<int>(min_of<int64_t>(kPanel, a.n - column)), false, nullptr});
  }
}

// Panels of one piece of work: about 64 KiB of weight, and a multiple of a tile's panels.
int64_t grain_of(const LinearArgs& a, const Split& split) {
  const int64_t panels = max_of<int64_t>(1, 65536 / (a.k * kPanel * 4));
  return (panels + split.panels - 1) / split.panels * split.panels;
}

}  // namespace

int linear(const LinearArgs& a) {
  if (a.rows == 0) return kOk;
  const Split split = split_rows(a.rows);
  if (a.rows == 1) {
    parallel(panels_of(a.n), grain_of(a, split),
             [&](int64_t begin, int64_t end) { run_one_row(a, begin, end); });
    return kOk;
  }
  float* rows = scratch(Scratch::kPackedRows, split.tiles() * split.tile_size(a.k));
  if (!rows) return kNoMemory;
  pack_tiles(a, split, rows);
  parallel(panels_of(a.n), grain_of(a, split),
           [&](int64_t begin, int64_t end) { run_panels(a, split, rows, begin, end); });
  return kOk;
}

int pack(const PackArgs& a) {
  parallel(panels_of(a.n), 4, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      float* out = a.packed + p * a.k * kPanel;
      const int64_t columns = min_of<int64_t>(kPanel, a.n - p * kPanel);
      for (int64_t k = 0; k < a.k; ++k) {
        for (int64_t c = 0; c < kPanel; ++c) {
          out[k * kPanel + c] =
              c < columns ? a.weight[(p * kPanel + c) * a.weight_row + k * a.weight_column] : 0.0f;
        }
      }
    }
  });
  return kOk;
}

}  // namespace tokenspeed::cpu::TS_ISA
