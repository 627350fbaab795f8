// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// One query per row over paged keys and values, or a few: the last token with guesses behind it.
//
// A piece of work is (row, kv head, part of the row's tokens). All query heads of the kv head, of
// all queries, are answered together, block by block, so a key or value is read from memory once.
//
// Parts and blocks begin at multiples of their sizes and each query sums for itself, so its answer
// has the same bits whether it comes alone, behind others of its row, or beside other rows.

#include "../pool.h"
#include "attention.h"
#include "kernels.h"

namespace tokenspeed::cpu::TS_ISA {
namespace {

constexpr int kBlock = 64;      // tokens between two updates of the running maximum
constexpr int kMaxPairs = 8;    // answered at once; more are answered in turns
constexpr int64_t kPart = 128;  // tokens of a part: a few blocks
constexpr int64_t kSerialFloats =
    65536;  // of keys and values: less is done sooner than a thread wakes
constexpr float kMinusInfinity = -__builtin_inff();

struct Block {
  const float* keys[kBlock];
  const float* values[kBlock];
  int count;
};

// Unnormalised answer of one piece for one pair: head_dim sums, then the maximum and the mass.
struct Partial {
  float* data;
  int64_t head_dim;
  float* sums() const { return data; }
  float& maximum() const { return data[head_dim]; }
  float& mass() const { return data[head_dim + 1]; }
  static int64_t floats(int64_t head_dim) { return head_dim + 16; }
};

struct Piece {
  int64_t row, head, part;
  int64_t first, last;  // tokens
};

// Pairs of a query and one of its heads that are answered at once.
struct Pairs {
  const float* q;  // [pairs][head_dim], scaled
  float* partials;
  int64_t head_dim;
  bool first;            // of the piece: what it reads comes from memory
  int seen[kMaxPairs];   // tokens of the block that each sees
  Partial partial(int p) const { return {partials + p * Partial::floats(head_dim), head_dim}; }
};

void locate_block(const Pages& c, const PageRow& row, const Piece& piece, int64_t first,
                  Block& block) {
  block.count = static_cast<int>(clamp<int64_t>(piece.last - first, 0, kBlock));
  if (block.count == 0) return;
  locate(c, row, piece.head, first, block.count, block.keys, block.values);
  const int padded = (block.count + kWidth - 1) / kWidth * kWidth;
  for (int i = block.count; i < padded; ++i) block.keys[i] = block.keys[0];
}

// Into the second-level cache: it keeps many more fetches in flight than the first, which counts
// when every page is somewhere else. Measured on Zen 4: 22 GB/s against 10.
TS_INLINE void prefetch_row(const float* row, int64_t head_dim) {
  for (int64_t d = 0; d < head_dim; d += 16) __builtin_prefetch(row + d, 0, 2);
}

// Products of one key with all queries, not yet summed over the lanes.
template <int kPairs>
TS_INLINE void dot(const float* key, const float* q, int64_t head_dim, Vec (*products)[kWidth],
                   int lane) {
  Vec acc[kPairs] = {};
  for (int64_t d = 0; d < head_dim; d += kWidth) {
    const Vec k = load(key + d);
    for (int g = 0; g < kPairs; ++g) acc[g] += k * load(q + g * head_dim + d);
  }
  for (int g = 0; g < kPairs; ++g) products[g][lane] = acc[g];
}

// Scores of a block, scaled, with -inf behind the last token that a pair sees.
template <int kPairs>
void score(const Block& block, const Pairs& pairs, float (*scores)[kBlock]) {
  for (int first = 0; first < block.count; first += kWidth) {
    Vec products[kPairs][kWidth];
    for (int i = 0; i < kWidth; ++i) {
      if (pairs.first && first + i < block.count) {
        prefetch_row(block.values[first + i], pairs.head_dim);
      }
      dot<kPairs>(block.keys[first + i], pairs.q, pairs.head_dim, products, i);
    }
    for (int p = 0; p < kPairs; ++p) store(scores[p] + first, sums(products[p]));
  }
  const int padded = (block.count + kWidth - 1) / kWidth * kWidth;
  for (int p = 0; p < kPairs; ++p) {
    for (int i = pairs.seen[p]; i < padded; ++i) scores[p][i] = kMinusInfinity;
  }
}

// Turns scores into weights relative to the running maximum; rescales what was summed before.
TS_INLINE void weigh(float* scores, int count, const Partial& partial) {
  Vec top = splat(partial.maximum());
  for (int i = 0; i < count; i += kWidth) top = max_of(load(scores + i), top);
  const float maximum_now = maximum(top);
  Vec mass = {};
  for (int i = 0; i < count; i += kWidth) {
    const Vec w = exp(load(scores + i) - maximum_now);
    store(scores + i, w);
    mass += w;
  }
  if (maximum_now > partial.maximum()) {
    const float shrink = exp(splat(partial.maximum() - maximum_now))[0];
    for (int64_t d = 0; d < partial.head_dim; ++d) partial.sums()[d] *= shrink;
    partial.mass() *= shrink;
    partial.maximum() = maximum_now;
  }
  partial.mass() += sum(mass);
}

// Adds the weighted values of a block, kVecs vectors of each row at a time.
template <int kPairs, int kVecs>
TS_INLINE void add_columns(const Block& block, const Block& next, const float (*scores)[kBlock],
                           const Pairs& pairs, int64_t d, bool fetch) {
  Vec acc[kPairs][kVecs];
  for (int p = 0; p < kPairs; ++p) {
    for (int j = 0; j < kVecs; ++j) acc[p][j] = load(pairs.partial(p).sums() + d + j * kWidth);
  }
  for (int i = 0; i < block.count; ++i) {
    if (fetch && i < next.count) prefetch_row(next.keys[i], pairs.head_dim);
    const float* value = block.values[i] + d;
    for (int j = 0; j < kVecs; ++j) {
      const Vec v = load(value + j * kWidth);
      for (int p = 0; p < kPairs; ++p) acc[p][j] += scores[p][i] * v;
    }
  }
  for (int p = 0; p < kPairs; ++p) {
    for (int j = 0; j < kVecs; ++j) store(pairs.partial(p).sums() + d + j * kWidth, acc[p][j]);
  }
}

template <int kPairs>
void add_values(const Block& block, const Block& next, const float (*scores)[kBlock],
                const Pairs& pairs) {
  constexpr int kFit = kRegisters * 3 / 4 / kPairs;
  constexpr int kVecs = kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  const int64_t dim = pairs.head_dim;
  int64_t d = 0;
  for (; d + kVecs * kWidth <= dim; d += kVecs * kWidth) {
    add_columns<kPairs, kVecs>(block, next, scores, pairs, d, pairs.first && d == 0);
  }
  for (; d < dim; d += kWidth) {
    add_columns<kPairs, 1>(block, next, scores, pairs, d, pairs.first && d == 0);
  }
}

template <int kPairs>
void attend_block(const Block& block, const Block& next, const Pairs& pairs) {
  float scores[kPairs][kBlock];
  score<kPairs>(block, pairs, scores);
  for (int p = 0; p < kPairs; ++p) {
    if (pairs.seen[p] > 0) {
      weigh(scores[p], block.count, pairs.partial(p));
    } else {
      for (int i = 0; i < block.count; ++i) scores[p][i] = 0.0f;
    }
  }
  add_values<kPairs>(block, next, scores, pairs);
}

using AttendBlock = void (*)(const Block&, const Block&, const Pairs&);
constexpr AttendBlock kAttendBlock[] = {
    nullptr,         attend_block<1>, attend_block<2>, attend_block<3>, attend_block<4>,
    attend_block<5>, attend_block<6>, attend_block<7>, attend_block<8>};

// How rows are cut. A piece has room for the partials of the most pairs that a row has.
struct Plan {
  int64_t kv_heads, group, most_queries = 0, parts = 0, grain = 1;

  explicit Plan(const AttentionArgs& a)
      : kv_heads(a.cache.kv_heads), group(a.heads / a.cache.kv_heads) {
    int64_t work = 0;
    for (int64_t r = 0; r < a.rows; ++r) {
      const int64_t queries = queries_of(a, r), length = length_here(a, r);
      parts = max_of(parts, parts_of(length));
      if (length > 0) most_queries = max_of(most_queries, queries);
      work += length * queries;
    }
    if (2 * work * kv_heads * a.cache.head_dim < kSerialFloats) grain = pieces(a);
  }

  // Tokens of a row that is answered here.
  static int64_t length_here(const AttentionArgs& a, int64_t row) {
    const int64_t queries = queries_of(a, row);
    return 0 < queries && queries <= kFewQueries ? length_of(a.cache, a.kv_len[row]) : 0;
  }
  static int64_t parts_of(int64_t length) { return (length + kPart - 1) / kPart; }
  int64_t pieces(const AttentionArgs& a) const { return a.rows * kv_heads * parts; }

  Piece piece(const AttentionArgs& a, int64_t index) const {
    const int64_t part = index % parts, head = index / parts % kv_heads,
                  row = index / parts / kv_heads;
    const int64_t length = length_here(a, row);
    return {row, head, part, min_of(part * kPart, length), min_of((part + 1) * kPart, length)};
  }

  // Floats in front of the partials of a piece's pair; pairs are numbered query by query.
  int64_t place(const AttentionArgs& a, int64_t row, int64_t head, int64_t part,
                int64_t pair) const {
    const int64_t piece = (row * kv_heads + head) * parts + part;
    return (piece * most_queries * group + pair) * Partial::floats(a.cache.head_dim);
  }
};

// The queries of a piece, scaled; its partials are empty.
void load_queries(const AttentionArgs& a, const Plan& plan, const Piece& piece, float* q,
                  float* partials) {
  const int64_t dim = a.cache.head_dim, pairs = queries_of(a, piece.row) * plan.group;
  const float scale = static_cast<float>(a.scale);
  for (int64_t p = 0; p < pairs; ++p, q += dim, partials += Partial::floats(dim)) {
    const int64_t token = first_query(a, piece.row) + p / plan.group;
    const int64_t head = piece.head * plan.group + p % plan.group;
    const float* from = a.q + token * a.q_token + head * a.q_head;
    const Partial partial{partials, dim};
    for (int64_t d = 0; d < dim; ++d) q[d] = from[d] * scale;
    for (int64_t d = 0; d < dim; ++d) partial.sums()[d] = 0.0f;
    partial.maximum() = kMinusInfinity;
    partial.mass() = 0.0f;
  }
}

void attend(const AttentionArgs& a, const Plan& plan, const Piece& piece, float* q,
            float* partials) {
  const int64_t dim = a.cache.head_dim, queries = queries_of(a, piece.row);
  const int64_t pairs = queries * plan.group;
  const int64_t before = length_of(a.cache, a.kv_len[piece.row]) - queries;  // the first query
  const int64_t turns = (pairs + kMaxPairs - 1) / kMaxPairs, most = (pairs + turns - 1) / turns;
  const PageRow row(a.cache, a.row_slot[piece.row]);
  load_queries(a, plan, piece, q, partials);
  Block blocks[2];
  locate_block(a.cache, row, piece, piece.first, blocks[0]);
  int now = 0;
  for (int64_t first = piece.first; first < piece.last; first += kBlock, now ^= 1) {
    const Block& block = blocks[now];
    locate_block(a.cache, row, piece, first + kBlock, blocks[now ^ 1]);
    for (int64_t p = 0; p < pairs; p += most) {
      Pairs at_once{q + p * dim, partials + p * Partial::floats(dim), dim, p == 0, {}};
      const int64_t count = min_of(most, pairs - p);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t seen = before + (p + i) / plan.group + 1 - first;
        at_once.seen[i] = static_cast<int>(clamp<int64_t>(seen, 0, block.count));
      }
      kAttendBlock[count](block, blocks[now ^ 1], at_once);
    }
  }
}

// Puts the parts of a row's pair together.
void merge(const AttentionArgs& a, const Plan& plan, float* partials, int64_t row, int64_t query,
           int64_t head) {
  const int64_t dim = a.cache.head_dim;
  const int64_t parts = Plan::parts_of(length_of(a.cache, a.kv_len[row]));
  float* out = a.out + ((first_query(a, row) + query) * a.heads + head) * dim;
  float top = kMinusInfinity, mass = 0.0f;
  const auto part = [&](int64_t p) {
    const int64_t pair = query * plan.group + head % plan.group;
    return Partial{partials + plan.place(a, row, head / plan.group, p, pair), dim};
  };
  for (int64_t p = 0; p < parts; ++p) top = max_of(top, part(p).maximum());
  for (int64_t d = 0; d < dim; ++d) out[d] = 0.0f;
  for (int64_t p = 0; p < parts; ++p) {
    const Partial from = part(p);
    if (from.mass() == 0.0f) continue;
    const float weight = exp(splat(from.maximum() - top))[0];
    for (int64_t d = 0; d < dim; ++d) out[d] += from.sums()[d] * weight;
    mass += from.mass() * weight;
  }
  if (mass == 0.0f) return;
  for (int64_t d = 0; d < dim; ++d) out[d] /= mass;
}

void merge_all(const AttentionArgs& a, const Plan& plan, float* partials) {
  for (int64_t r = 0; r < a.rows; ++r) {
    if (!has_few_queries(a, r)) continue;
    for (int64_t i = 0; i < queries_of(a, r); ++i) {
      for (int64_t h = 0; h < a.heads; ++h) merge(a, plan, partials, r, i, h);
    }
  }
}

}  // namespace

int attend_few(const AttentionArgs& a) {
  const Plan plan(a);
  const int64_t pieces = plan.pieces(a), floats = plan.place(a, a.rows, 0, 0, 0);
  const int64_t queries = plan.most_queries * plan.group * a.cache.head_dim;
  float* partials = scratch(Scratch::kPartials, max_of<int64_t>(1, floats));
  if (!partials || !scratch(Scratch::kQueries, max_of<int64_t>(1, queries))) return kNoMemory;
  parallel(pieces, plan.grain, [&](int64_t begin, int64_t end) {
    float* q = scratch(Scratch::kQueries, queries);
    if (!q) __builtin_trap();
    for (int64_t i = begin; i < end; ++i) {
      const Piece piece = plan.piece(a, i);
      if (piece.first == piece.last) continue;
      attend(a, plan, piece, q,
             partials + plan.place(a, piece.row, piece.head, piece.part, 0));
    }
  });
  merge_all(a, plan, partials);
  return kOk;
}

int attention_decode(const AttentionArgs& a) { return attend_few(a); }

}  // namespace tokenspeed::cpu::TS_ISA
