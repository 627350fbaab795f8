// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// Causal attention of many queries per row over paged keys and values; rows with few are answered
// as in a decode step.
//
// A piece of work is a tile: up to kTileRows (query, head of the group) pairs of one row and one kv
// head. Scores are kept transposed, [token][tile row], so that the softmax runs over vectors of
// rows without a sum across lanes, and so that both products are plain register tiles.

#include "../pool.h"
#include "attention.h"
#include "kernels.h"

namespace tokenspeed::cpu::TS_ISA {
namespace {

constexpr int kTileRows = 48;
constexpr int kBlock = 64;  // tokens between two updates of the running maxima
constexpr int kRowVecs = kTileRows / kWidth;
constexpr int kScoreVecs = 3;                           // tile rows of a score tile, in vectors
constexpr int kScoreTokens = kRegisters == 32 ? 8 : 4;  // tokens of a score tile
constexpr int kValueRows = 6;                           // tile rows of a value tile
constexpr int kValueVecs = kRegisters == 32 ? 4 : 2;    // columns of a value tile, in vectors
constexpr float kMinusInfinity = -__builtin_inff();

struct TileOfQueries {
  int64_t row, kv_head;
  int64_t first, count;    // queries of the row
  int64_t length;          // tokens of the row
  int64_t query_position;  // of the first query
};

// Buffers of one thread.
struct Buffers {
  float* q;        // [head_dim][kTileRows], scaled
  float* keys;     // [kBlock][head_dim]
  float* values;   // [kBlock][head_dim]
  float* scores;   // [kBlock][kTileRows]
  float* sums;     // [kTileRows][head_dim]
  float* maximum;  // [kTileRows]
  float* mass;     // [kTileRows]
  float* shrink;   // [kTileRows]

  static int64_t floats(int64_t head_dim) {
    return head_dim * (2 * kTileRows + 2 * kBlock) + kBlock * kTileRows + 3 * kTileRows;
  }

  Buffers(float* at, int64_t head_dim)
      : q(at),
        keys(q + head_dim * kTileRows),
        values(keys + kBlock * head_dim),
        scores(values + kBlock * head_dim),
        sums(scores + kBlock * kTileRows),
        maximum(sums + kTileRows * head_dim),
        mass(maximum + kTileRows),
        shrink(mass + kTileRows) {}
};

struct Shape {
  int64_t kv_heads, group, head_dim;
  int64_t queries;  // of a full tile
  int64_t heads_at_once;

  explicit Shape(const AttentionArgs& a)
      : kv_heads(a.cache.kv_heads),
        group(a.heads / a.cache.kv_heads),
        head_dim(a.cache.head_dim),
        queries(max_of<int64_t>(1, kTileRows / group)),
        heads_at_once(min_of<int64_t>(group, kTileRows)) {}
};

// Row i of a tile is query i / heads, head i % heads of those answered together.
void load_queries(const AttentionArgs& a, const TileOfQueries& tile, int64_t head, int64_t heads,
                  Buffers& b) {
  const int64_t dim = a.cache.head_dim, token = first_query(a, tile.row) + tile.first;
  const float scale = static_cast<float>(a.scale);
  for (int64_t i = 0; i < kTileRows; ++i) {
    const bool real = i < tile.count * heads;
    const float* q =
        a.q + (token + (real ? i / heads : 0)) * a.q_token + (head + i % heads) * a.q_head;
    for (int64_t d = 0; d < dim; ++d) b.q[d * kTileRows + i] = real ? q[d] * scale : 0.0f;
  }
  for (int64_t i = 0; i < kTileRows * dim; ++i) b.sums[i] = 0.0f;
  for (int64_t i = 0; i < kTileRows; ++i) b.maximum[i] = kMinusInfinity, b.mass[i] = 0.0f;
}

// Copies a block out of its pages, so that the products know nothing of pages. Behind the last
// token lie zeros: their weight is zero, and zero times whatever a page held could be NaN.
void load_block(const AttentionArgs& a, const PageRow& row, int64_t head, int64_t first,
                int64_t count, Buffers& b) {
  const int64_t dim = a.cache.head_dim;
  const float *keys[kBlock], *values[kBlock];
  locate(a.cache, row, head, first, count, keys, values);
  for (int64_t i = 0; i < count; ++i) {
    copy(keys[i], b.keys + i * dim, dim);
    copy(values[i], b.values + i * dim, dim);
  }
  for (int64_t i = count * dim; i < kBlock * dim; ++i) b.keys[i] = b.values[i] = 0.0f;
}

// scores[token][rows] = keys[token] . q[rows], for kScoreTokens tokens and kScoreVecs vectors of
// rows.
TS_INLINE void score_tile(const float* keys, const float* q, int64_t dim, float* scores) {
  Vec acc[kScoreTokens][kScoreVecs] = {};
  for (int64_t d = 0; d < dim; ++d) {
    Vec rows[kScoreVecs];
    for (int j = 0; j < kScoreVecs; ++j) rows[j] = load(q + d * kTileRows + j * kWidth);
    for (int t = 0; t < kScoreTokens; ++t) {
      const Vec k = splat(keys[t * dim + d]);
      for (int j = 0; j < kScoreVecs; ++j) acc[t][j] += k * rows[j];
    }
  }
  for (int t = 0; t < kScoreTokens; ++t) {
    for (int j = 0; j < kScoreVecs; ++j) store(scores + t * kTileRows + j * kWidth, acc[t][j]);
  }
}

void score_block(int64_t count, int64_t dim, Buffers& b) {
  for (int64_t t = 0; t < count; t += kScoreTokens) {
    for (int j = 0; j < kRowVecs; j += kScoreVecs) {
      score_tile(b.keys + t * dim, b.q + j * kWidth, dim, b.scores + t * kTileRows + j * kWidth);
    }
  }
}

// Hides tokens behind each query, and behind the last token of the block.
void mask_block(const TileOfQueries& tile, int64_t heads, int64_t first, int64_t count,
                Buffers& b) {
  for (int64_t t = 0; t < kBlock; ++t) {
    // Queries before this one do not see token first + t.
    const int64_t query = t < count ? first + t - tile.query_position : tile.count;
    const int64_t hidden = clamp<int64_t>(query * heads, 0, kTileRows);
    for (int64_t i = 0; i < (t < count ? hidden : kTileRows); ++i) {
      b.scores[t * kTileRows + i] = kMinusInfinity;
    }
  }
}

// Turns scores into weights relative to the running maxima. True if something summed must shrink.
bool weigh_block(Buffers& b) {
  bool grew = false;
  for (int j = 0; j < kRowVecs; ++j) {
    float* scores = b.scores + j * kWidth;
    const Vec before = load(b.maximum + j * kWidth);
    Vec top = before;
    for (int t = 0; t < kBlock; ++t) top = max_of(load(scores + t * kTileRows), top);
    // A row that has seen nothing yet keeps -inf; its weights must be 0, not exp(-inf + inf).
    const Vec base = top == splat(kMinusInfinity) ? Vec{} : top;
    Vec mass = {};
    for (int t = 0; t < kBlock; ++t) {
      const Vec w = exp(load(scores + t * kTileRows) - base);
      store(scores + t * kTileRows, w);
      mass += w;
    }
    const Vec shrink = exp(before - base);
    store(b.shrink + j * kWidth, shrink);
    store(b.maximum + j * kWidth, top);
    store(b.mass + j * kWidth, load(b.mass + j * kWidth) * shrink + mass);
    for (int i = 0; i < kWidth; ++i) grew |= shrink[i] != 1.0f;
  }
  return grew;
}

void shrink_sums(int64_t dim, Buffers& b) {
  for (int64_t i = 0; i < kTileRows; ++i) {
    const Vec shrink = splat(b.shrink[i]);
    for (int64_t d = 0; d < dim; d += kWidth)
      store(b.sums + i * dim + d, load(b.sums + i * dim + d) * shrink);
  }
}

// sums[rows] += weights[tokens][rows] * values[tokens], for kValueRows rows and kVecs vectors.
template <int kVecs>
TS_INLINE void value_tile(const float* weights, const float* values, int64_t dim, int64_t tokens,
                          float* sums) {
  Vec acc[kValueRows][kVecs];
  for (int i = 0; i < kValueRows; ++i) {
    for (int j = 0; j < kVecs; ++j) acc[i][j] = load(sums + i * dim + j * kWidth);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    Vec v[kVecs];
    for (int j = 0; j < kVecs; ++j) v[j] = load(values + t * dim + j * kWidth);
    for (int i = 0; i < kValueRows; ++i) {
      const Vec w = splat(weights[t * kTileRows + i]);
      for (int j = 0; j < kVecs; ++j) acc[i][j] += w * v[j];
    }
  }
  for (int i = 0; i < kValueRows; ++i) {
    for (int j = 0; j < kVecs; ++j) store(sums + i * dim + j * kWidth, acc[i][j]);
  }
}

void add_values(int64_t rows, int64_t count, int64_t dim, Buffers& b) {
  for (int64_t i = 0; i < rows; i += kValueRows) {
    int64_t d = 0;
    for (; d + kValueVecs * kWidth <= dim; d += kValueVecs * kWidth) {
      value_tile<kValueVecs>(b.scores + i, b.values + d, dim, count, b.sums + i * dim + d);
    }
    for (; d < dim; d += kWidth)
      value_tile<1>(b.scores + i, b.values + d, dim, count, b.sums + i * dim + d);
  }
}

void store_answers(const AttentionArgs& a, const TileOfQueries& tile, int64_t head, int64_t heads,
                   const Buffers& b) {
  const int64_t dim = a.cache.head_dim, token = first_query(a, tile.row) + tile.first;
  for (int64_t i = 0; i < tile.count * heads; ++i) {
    float* out = a.out + ((token + i / heads) * a.heads + head + i % heads) * dim;
    const float scale = b.mass[i] == 0.0f ? 0.0f : 1.0f / b.mass[i];
    for (int64_t d = 0; d < dim; ++d) out[d] = b.sums[i * dim + d] * scale;
  }
}

void attend(const AttentionArgs& a, const TileOfQueries& tile, int64_t head, int64_t heads,
            Buffers& b) {
  const PageRow row(a.cache, a.row_slot[tile.row]);
  const int64_t dim = a.cache.head_dim;
  const int64_t seen = min_of(tile.length, tile.query_position + tile.count);
  load_queries(a, tile, head, heads, b);
  for (int64_t first = 0; first < seen; first += kBlock) {
    const int64_t count = min_of<int64_t>(kBlock, seen - first);
    load_block(a, row, tile.kv_head, first, count, b);
    score_block(count, dim, b);
    if (count < kBlock || first + count > tile.query_position + 1)
      mask_block(tile, heads, first, count, b);
    if (weigh_block(b)) shrink_sums(dim, b);
    add_values(tile.count * heads, count, dim, b);
  }
  store_answers(a, tile, head, heads, b);
}

int64_t tiles_of(const AttentionArgs& a, const Shape& shape, int64_t row) {
  if (has_few_queries(a, row)) return 0;
  return (queries_of(a, row) + shape.queries - 1) / shape.queries * shape.kv_heads;
}

// Tiles are numbered row by row; the last tiles of a row see most tokens and come first.
TileOfQueries find_tile(const AttentionArgs& a, const Shape& shape, int64_t index) {
  int64_t row = 0, tiles;
  for (;; ++row, index -= tiles) {
    tiles = tiles_of(a, shape, row);
    if (index < tiles) break;
  }
  const int64_t number = tiles / shape.kv_heads - 1 - index / shape.kv_heads;
  const int64_t queries = queries_of(a, row), length = length_of(a.cache, a.kv_len[row]);
  const int64_t first = number * shape.queries;
  return {row,    index % shape.kv_heads,  first, min_of(shape.queries, queries - first),
          length, length - queries + first};
}

}  // namespace

int attention_prefill(const AttentionArgs& a) {
  const Shape shape(a);
  int64_t tiles = 0;
  for (int64_t r = 0; r < a.rows; ++r) tiles += tiles_of(a, shape, r);
  if (const int status = attend_few(a)) return status;
  if (!scratch(Scratch::kTile, Buffers::floats(shape.head_dim))) return kNoMemory;
  parallel(tiles, 1, [&](int64_t begin, int64_t end) {
    float* memory = scratch(Scratch::kTile, Buffers::floats(shape.head_dim));
    if (!memory) __builtin_trap();
    Buffers buffers(memory, shape.head_dim);
    for (int64_t i = begin; i < end; ++i) {
      const TileOfQueries tile = find_tile(a, shape, i);
      for (int64_t g = 0; g < shape.group; g += shape.heads_at_once) {
        const int64_t heads = min_of(shape.heads_at_once, shape.group - g);
        attend(a, tile, tile.kv_head * shape.group + g, heads, buffers);
      }
    }
  });
  // Padding behind the last row: what it holds may be written to the null page, so no NaN.
  const int64_t used = a.rows > 0 ? first_query(a, a.rows) : 0;
  for (int64_t i = used * a.heads * shape.head_dim; i < a.tokens * a.heads * shape.head_dim; ++i)
    a.out[i] = 0.0f;
  return kOk;
}

}  // namespace tokenspeed::cpu::TS_ISA
