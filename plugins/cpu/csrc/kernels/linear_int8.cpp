// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "linear_int8.h"

#include "../args.h"
#include "../pool.h"
#include "kernels.h"

namespace tokenspeed::cpu::TS_ISA {
namespace {

using Run = void (*)(const Int8Tile&);
using CodeVec = Code
    __attribute__((vector_size(kWidth * sizeof(Code)), aligned(sizeof(Code)), may_alias));

template <int kLines, int... kRows>
struct TileTable {
  static constexpr Run runs[] = {nullptr, run_int8_tile<kRows, kLines>...};
};

#if defined(__AVX512F__)
template <int kLines>
using Tiles = TileTable<kLines, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>;
#else
template <int kLines>
using Tiles = TileTable<kLines, 1, 2, 3>;
#endif

constexpr int64_t kPieceBytes = 16 * 1024;  // of weight, in the least piece of work
constexpr int64_t kPiecesPerThread = 4;
constexpr int64_t kPieceFloats = 32768;     // of activations that are quantised

int64_t panels_of(int64_t n) { return (n + kPanel - 1) / kPanel; }
int64_t groups_of(int64_t k) { return (k + kGroup - 1) / kGroup; }

// Rows as tiles of equal height (the last may be lower).
struct Split {
  int64_t rows, groups, height;
  Split(int64_t all, int64_t k) : rows(all), groups(groups_of(k)), height(kInt8TileRows) {
    const int64_t count = (rows + height - 1) / height;
    if (count <= 2) height = (rows + count - 1) / count;
  }
  int64_t tiles() const { return (rows + height - 1) / height; }
  int64_t height_of(int64_t tile) const { return min_of(height, rows - tile * height); }
  int64_t tile_bytes() const { return groups * RowGroup::size(height); }
};

// Codes and scale of kGroup features, of row `row` of `to`.
TS_INLINE void quantize_group(const float* x, const RowGroup& to, int64_t row) {
  IntVec largest = {};  // bits of magnitudes order as magnitudes do, NaN above all
  for (int i = 0; i < kGroup; i += kWidth) {
    largest = Larger{}(largest, bits(load(x + i)) & 0x7fffffff);
  }
  const int32_t most = joined<Larger>(largest);
  const bool finite = most < 0x7f800000;
  const float step = __builtin_bit_cast(float, most) / 127.0f;
  const float scale = step == 0 ? 1.0f : step;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  Code codes[kGroup];
  IntVec sums = {};
  for (int i = 0; i < kGroup; i += kWidth) {
    const Vec rounded = finite ? load(x + i) / scale + magic : splat(magic);
    const IntVec code = bits(rounded) - __builtin_bit_cast(int32_t, magic);
    sums += code;
    *reinterpret_cast<CodeVec*>(codes + i) = __builtin_convertvector(code, CodeVec);
  }
  to.scale()[row] = finite ? scale : __builtin_nanf("");
  to.start()[row] = static_cast<Number>(-kOffset * joined<Sum>(sums));
  for (int i = 0; i < kFours; ++i) {
    __builtin_memcpy(to.four(i, row), codes + 4 * i, 4 * sizeof(Code));
  }
}

void quantize_tile(const LinearInt8Args& a, const Split& split, int64_t tile, char* to) {
  const int64_t height = split.height_of(tile);
  const float* x = a.x + tile * split.height * a.x_stride;
  for (int64_t row = 0; row < height; ++row, x += a.x_stride) {
    RowGroup group{to, height};
    int64_t k = 0;
    for (; k + kGroup <= a.k; k += kGroup, group.at += RowGroup::size(height)) {
      quantize_group(x + k, group, row);
    }
    if (k == a.k) continue;
    float last[kGroup] = {};
    for (int64_t i = 0; i < a.k - k; ++i) last[i] = x[k + i];
    quantize_group(last, group, row);
  }
}

// Few rows wait for memory: their one tile fetches the next panel, or two do half of it each.
Run tile_of(const Split& split, int64_t tile, const char*& ahead) {
  const int64_t height = split.height_of(tile);
  if (split.tiles() == 1) return Tiles<kFours>::runs[height];
  if (split.tiles() > 2) return Tiles<0>::runs[height];
  ahead += tile * (kFours / 2) * kLine;
  return Tiles<kFours / 2>::runs[height];
}

// Panels of one piece of work: a few pieces for each thread, so that what a thread fetches ahead is
// mostly its own.
int64_t grain_of(int64_t panels, int64_t panel_bytes) {
  const int64_t pieces = kPiecesPerThread * pool_threads();
  return max_of((panels + pieces - 1) / pieces, max_of<int64_t>(1, kPieceBytes / panel_bytes));
}

// All rows times the panels [begin, end).
void run_panels(const LinearInt8Args& a, const Split& split, char* rows, int64_t begin,
                int64_t end) {
  const int64_t panel_bytes = split.groups * kGroup * kPanel;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t column = p * kPanel;
    for (int64_t t = 0; t < split.tiles(); ++t) {
      Int8Tile tile{};
      tile.to.out = a.out + t * split.height * a.out_stride + column;
      tile.to.out_stride = a.out_stride;
      tile.to.bias = a.bias ? a.bias + column : nullptr;
      tile.to.columns = static_cast<int>(min_of<int64_t>(kPanel, a.n - column));
      tile.rows = rows + t * split.tile_bytes();
      tile.panel = a.packed + p * panel_bytes;
      tile.scale = a.scale + column;
      tile.scale_stride = a.scale_stride;
      tile.groups = split.groups;
      tile.ahead = reinterpret_cast<const char*>(tile.panel + panel_bytes);
      tile_of(split, t, tile.ahead)(tile);
    }
  }
}

}  // namespace

int linear_int8(const LinearInt8Args& a) {
  if (a.rows == 0) return kOk;
  const Split split(a.rows, a.k);
  const int64_t bytes = split.tiles() * split.tile_bytes();
  char* rows = reinterpret_cast<char*>(scratch(Scratch::kPackedRows, (bytes + 3) / 4));
  if (!rows) return kNoMemory;
  parallel(split.tiles(), max_of<int64_t>(1, kPieceFloats / (split.height * a.k)),
           [&](int64_t begin, int64_t end) {
             for (int64_t t = begin; t < end; ++t) {
               quantize_tile(a, split, t, rows + t * split.tile_bytes());
             }
           });
  parallel(panels_of(a.n), grain_of(panels_of(a.n), split.groups * kGroup * kPanel),
           [&](int64_t begin, int64_t end) { run_panels(a, split, rows, begin, end); });
  return kOk;
}

int pack_int8(const PackInt8Args& a) {
  const int64_t depth = groups_of(a.k) * kGroup;
  parallel(panels_of(a.n), 4, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      uint8_t* out = a.packed + p * depth * kPanel;
      for (int64_t k = 0; k < depth; ++k) {
        for (int64_t c = 0; c < kPanel; ++c) {
          const int64_t n = p * kPanel + c;
          const bool exists = k < a.k && n < a.n;
          const int code = exists ? a.weight[n * a.weight_row + k * a.weight_column] : 0;
          out[k / 4 * (kPanel * 4) + c * 4 + k % 4] = static_cast<uint8_t>(code + kOffset);
        }
      }
    }
  });
  return kOk;
}

}  // namespace tokenspeed::cpu::TS_ISA
