// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// One query per row over paged keys and values.
//
// A piece of work is (row, kv head, part of the row's tokens). All query heads of the kv head are
// answered together, block by block, so a key or value is read from memory once.

#include "../pool.h"
#include "kernels.h"
#include "pages.h"

namespace tokenspeed::cpu::TS_ISA {
namespace {

constexpr int kBlock = 64;         // tokens between two updates of the running maximum
constexpr int kMaxGroup = 8;       // query heads answered at once; more are answered in turns
constexpr int64_t kMinPart = 256;  // tokens that make a part worth merging
constexpr int64_t kSerialFloats =
    65536;  // of keys and values: less is done sooner than a thread wakes
constexpr float kMinusInfinity = -__builtin_inff();

struct Block {
  const float* keys[kBlock];
  const float* values[kBlock];
  int count;
};

// Unnormalised answer of one piece for one query head: head_dim sums, then the maximum and the
// mass.
struct Partial {
  float* data;
  int64_t head_dim;
  float* sums() const { return data; }
  float& maximum() const { return data[head_dim]; }
  float& mass() const { return data[head_dim + 1]; }
  static int64_t floats(int64_t head_dim) { return head_dim + 16; }
};

struct Piece {
  int64_t row, head, first, last;
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

// Products of one key with kGroup queries, not yet summed over the lanes.
template <int kGroup>
TS_INLINE void dot(const float* key, const float* q, int64_t head_dim, Vec (*products)[kWidth],
                   int lane) {
  Vec acc[kGroup] = {};
  for (int64_t d = 0; d < head_dim; d += kWidth) {
    const Vec k = load(key + d);
    for (int g = 0; g < kGroup; ++g) acc[g] += k * load(q + g * head_dim + d);
  }
  for (int g = 0; g < kGroup; ++g) products[g][lane] = acc[g];
}

// Scores of a block, scaled, with -inf behind its last token.
template <int kGroup>
void score(const Block& block, const float* q, int64_t head_dim, float (*scores)[kBlock]) {
  for (int first = 0; first < block.count; first += kWidth) {
    Vec products[kGroup][kWidth];
    for (int i = 0; i < kWidth; ++i) {
      if (first + i < block.count) prefetch_row(block.values[first + i], head_dim);
      dot<kGroup>(block.keys[first + i], q, head_dim, products, i);
    }
    for (int g = 0; g < kGroup; ++g) store(scores[g] + first, sums(products[g]));
  }
  const int padded = (block.count + kWidth - 1) / kWidth * kWidth;
  for (int g = 0; g < kGroup; ++g) {
    for (int i = block.count; i < padded; ++i) scores[g][i] = kMinusInfinity;
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
template <int kGroup, int kVecs>
TS_INLINE void add_columns(const Block& block, const Block& next, const float (*scores)[kBlock],
                           const Partial* partials, int64_t d, bool fetch) {
  Vec acc[kGroup][kVecs];
  for (int g = 0; g < kGroup; ++g) {
    for (int j = 0; j < kVecs; ++j) acc[g][j] = load(partials[g].sums() + d + j * kWidth);
  }
  for (int i = 0; i < block.count; ++i) {
    if (fetch && i < next.count) prefetch_row(next.keys[i], partials[0].head_dim);
    const float* value = block.values[i] + d;
    for (int j = 0; j < kVecs; ++j) {
      const Vec v = load(value + j * kWidth);
      for (int g = 0; g < kGroup; ++g) acc[g][j] += scores[g][i] * v;
    }
  }
  for (int g = 0; g < kGroup; ++g) {
    for (int j = 0; j < kVecs; ++j) store(partials[g].sums() + d + j * kWidth, acc[g][j]);
  }
}

template <int kGroup>
void add_values(const Block& block, const Block& next, const float (*scores)[kBlock],
                const Partial* partials) {
  constexpr int kFit = kRegisters * 3 / 4 / kGroup;
  constexpr int kVecs = kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  const int64_t head_dim = partials[0].head_dim;
  int64_t d = 0;
  for (; d + kVecs * kWidth <= head_dim; d += kVecs * kWidth) {
    add_columns<kGroup, kVecs>(block, next, scores, partials, d, d == 0);
  }
  for (; d < head_dim; d += kWidth)
    add_columns<kGroup, 1>(block, next, scores, partials, d, d == 0);
}

// Answers kGroup query heads, from `head` on, over the tokens of a piece.
template <int kGroup>
void attend(const AttentionArgs& a, const Piece& piece, int64_t head, const Partial* partials) {
  const Pages& c = a.cache;
  const PageRow row(c, a.row_slot[piece.row]);
  float q[kMaxGroup * 256];
  const float scale = static_cast<float>(a.scale);
  for (int g = 0; g < kGroup; ++g) {
    const float* from = a.q + piece.row * a.q_token + (head + g) * a.q_head;
    for (int64_t d = 0; d < c.head_dim; ++d) q[g * c.head_dim + d] = from[d] * scale;
    for (int64_t d = 0; d < c.head_dim; ++d) partials[g].sums()[d] = 0.0f;
    partials[g].maximum() = kMinusInfinity;
    partials[g].mass() = 0.0f;
  }
  float scores[kGroup][kBlock];
  Block blocks[2];
  locate_block(c, row, piece, piece.first, blocks[0]);
  int now = 0;
  for (int64_t first = piece.first; first < piece.last; first += kBlock, now ^= 1) {
    const Block& block = blocks[now];
    locate_block(c, row, piece, first + kBlock, blocks[now ^ 1]);
    score<kGroup>(block, q, c.head_dim, scores);
    for (int g = 0; g < kGroup; ++g) weigh(scores[g], block.count, partials[g]);
    add_values<kGroup>(block, blocks[now ^ 1], scores, partials);
  }
}

using Attend = void (*)(const AttentionArgs&, const Piece&, int64_t, const Partial*);
constexpr Attend kAttend[] = {nullptr,   attend<1>, attend<2>, attend<3>, attend<4>,
                              attend<5>, attend<6>, attend<7>, attend<8>};

// How rows are cut. Every row is cut into as many parts; those of a short row may be empty.
struct Plan {
  int64_t kv_heads, group, parts, grain;

  explicit Plan(const AttentionArgs& a)
      : kv_heads(a.cache.kv_heads), group(a.heads / a.cache.kv_heads), parts(1), grain(1) {
    int64_t longest = 0, tokens = 0;
    for (int64_t r = 0; r < a.rows; ++r) {
      longest = max_of(longest, length_of(a.cache, a.kv_len[r]));
      tokens += length_of(a.cache, a.kv_len[r]);
    }
    const int64_t wanted = 4 * pool_threads();  // uneven rows and busy cores even out
    const int64_t heads = a.rows * kv_heads;
    if (2 * tokens * kv_heads * a.cache.head_dim < kSerialFloats) {
      grain = heads;
    } else if (pool_threads() > 1 && heads < wanted) {
      parts = clamp<int64_t>(longest / kMinPart, 1, (wanted + heads - 1) / heads);
    }
  }

  int64_t pieces(const AttentionArgs& a) const { return a.rows * kv_heads * parts; }

  Piece piece(const AttentionArgs& a, int64_t index) const {
    const int64_t part = index % parts, head = index / parts % kv_heads,
                  row = index / parts / kv_heads;
    const int64_t length = length_of(a.cache, a.kv_len[row]);
    const int64_t step = ((length + parts - 1) / parts + kBlock - 1) / kBlock * kBlock;
    return {row, head, min_of(part * step, length), min_of((part + 1) * step, length)};
  }
};

// Puts the parts of one (row, query head) together.
void merge(const AttentionArgs& a, const Plan& plan, const float* partials, int64_t row,
           int64_t head) {
  const int64_t dim = a.cache.head_dim, size = Partial::floats(dim);
  const int64_t kv_head = head / plan.group, member = head % plan.group;
  float* out = a.out + (row * a.heads + head) * dim;
  float top = kMinusInfinity, mass = 0.0f;
  const auto part = [&](int64_t p) {
    const int64_t piece = (row * plan.kv_heads + kv_head) * plan.parts + p;
    return Partial{const_cast<float*>(partials) + (piece * plan.group + member) * size, dim};
  };
  for (int64_t p = 0; p < plan.parts; ++p) top = max_of(top, part(p).maximum());
  for (int64_t d = 0; d < dim; ++d) out[d] = 0.0f;
  for (int64_t p = 0; p < plan.parts; ++p) {
    const Partial from = part(p);
    if (from.mass() == 0.0f) continue;
    const float weight = exp(splat(from.maximum() - top))[0];
    for (int64_t d = 0; d < dim; ++d) out[d] += from.sums()[d] * weight;
    mass += from.mass() * weight;
  }
  if (mass == 0.0f) return;
  for (int64_t d = 0; d < dim; ++d) out[d] /= mass;
}

}  // namespace

int attention_decode(const AttentionArgs& a) {
  if (a.rows == 0) return kOk;
  const Plan plan(a);
  const int64_t size = Partial::floats(a.cache.head_dim);
  float* partials = scratch(Scratch::kPartials, plan.pieces(a) * plan.group * size);
  if (!partials) return kNoMemory;
  parallel(plan.pieces(a), plan.grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece piece = plan.piece(a, i);
      for (int64_t g = 0; g < plan.group; g += kMaxGroup) {
        const int64_t count = min_of<int64_t>(kMaxGroup, plan.group - g);
        Partial group[kMaxGroup];
        for (int64_t j = 0; j < count; ++j) {
          group[j] = {partials + (i * plan.group + g + j) * size, a.cache.head_dim};
        }
        kAttend[count](a, piece, piece.head * plan.group + g, group);
      }
    }
  });
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) merge(a, plan, partials, r, h);
  }
  return kOk;
}

}  // namespace tokenspeed::cpu::TS_ISA
