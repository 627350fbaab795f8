// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// Kernels that move or scale rows: embedding, gather, norm, rope, kv_write, silu_and_mul.

#include "../pool.h"
#include "kernels.h"
#include "linear.h"
#include "pages.h"

namespace tokenspeed::cpu::TS_ISA {
namespace {

constexpr int64_t kSerialFloats = 131072;  // less is done sooner than a thread wakes

int64_t rows_per_piece(int64_t floats_per_row) {
  return max_of<int64_t>(1, kSerialFloats / max_of<int64_t>(1, floats_per_row));
}

void zero(float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = 0.0f;
}

// One row out of panels: every kPanel-th float.
void copy_packed(const EmbeddingArgs& a, int64_t id, float* to) {
  const float* from = a.weight + id / kPanel * a.hidden * kPanel + id % kPanel;
  for (int64_t h = 0; h < a.hidden; ++h) to[h] = from[h * kPanel];
}

// residual += x, or x alone without one; returns the sum of squares of the result.
float add_and_square(const float* __restrict x, float* __restrict residual, int64_t n) {
  Vec squares = {};
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    Vec v = load(x + i);
    if (residual) {
      v += load(residual + i);
      store(residual + i, v);
    }
    squares += v * v;
  }
  float total = sum(squares);
  for (; i < n; ++i) {
    float v = x[i];
    if (residual) v = residual[i] += v;
    total += v * v;
  }
  return total;
}

void scale_row(const float* x, const float* weight, float scale, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

// The pair of dimension i is i + half, or its neighbour when interleaved.
void rotate(float* x, const float* table, int64_t half, bool interleaved) {
  const float* cosine = table;
  const float* sine = table + half;
  if (interleaved) {
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cosine[i] - b * sine[i];
      x[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
    return;
  }
  float* __restrict low = x;
  float* __restrict high = x + half;
  for (int64_t i = 0; i < half; ++i) {
    const float a = low[i], b = high[i];
    low[i] = a * cosine[i] - b * sine[i];
    high[i] = b * cosine[i] + a * sine[i];
  }
}

TS_INLINE Vec silu_times(Vec gate, Vec up) { return gate / (1.0f + exp(-gate)) * up; }

void silu_row(const float* gate, const float* up, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, silu_times(load(gate + i), load(up + i)));
  if (i == n) return;
  float g[kWidth] = {}, u[kWidth] = {}, y[kWidth];
  for (int64_t j = 0; j < n - i; ++j) g[j] = gate[i + j], u[j] = up[i + j];
  store(y, silu_times(load(g), load(u)));
  for (int64_t j = 0; j < n - i; ++j) out[i + j] = y[j];
}

}  // namespace

int embedding(const EmbeddingArgs& a) {
  parallel(a.tokens, rows_per_piece(a.hidden), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = a.out + t * a.hidden;
      const int64_t id = a.ids[t];
      if (id < 0 || id >= a.vocab) {
        zero(out, a.hidden);
      } else if (a.weight_stride == 0) {
        copy_packed(a, id, out);
      } else {
        copy(a.weight + id * a.weight_stride, out, a.hidden);
      }
    }
  });
  return kOk;
}

int gather(const GatherArgs& a) {
  parallel(a.count, rows_per_piece(a.hidden), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = a.index[i];
      float* out = a.out + i * a.hidden;
      if (row < 0 || row >= a.rows) {
        zero(out, a.hidden);
      } else {
        copy(a.x + row * a.x_stride, out, a.hidden);
      }
    }
  });
  return kOk;
}

int norm(const NormArgs& a) {
  parallel(a.rows, rows_per_piece(a.hidden), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = a.x + r / a.inner * a.x_outer + r % a.inner * a.x_inner;
      float* residual = a.residual ? a.residual + r * a.residual_stride : nullptr;
      const float mean = add_and_square(x, residual, a.hidden) / static_cast<float>(a.hidden);
      const float scale = 1.0f / __builtin_sqrtf(mean + static_cast<float>(a.eps));
      scale_row(residual ? residual : x, a.weight, scale, a.out + r * a.hidden, a.hidden);
    }
  });
  return kOk;
}

int rope(const RopeArgs& a) {
  const int64_t per_token = (a.heads + a.kv_heads) * a.rotary;
  parallel(a.tokens, rows_per_piece(per_token), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = clamp<int64_t>(a.positions[t], 0, a.max_positions - 1);
      const float* table = a.cos_sin + position * a.cos_sin_stride;
      for (int64_t h = 0; h < a.heads; ++h) {
        rotate(a.q + t * a.q_token + h * a.q_head, table, a.rotary / 2, a.interleaved);
      }
      for (int64_t h = 0; h < a.kv_heads; ++h) {
        rotate(a.k + t * a.k_token + h * a.k_head, table, a.rotary / 2, a.interleaved);
      }
    }
  });
  return kOk;
}

int kv_write(const KvWriteArgs& a) {
  const Pages& c = a.cache;
  parallel(a.tokens, rows_per_piece(2 * c.kv_heads * c.head_dim), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = max_of<int64_t>(0, a.positions[t]);
      const int64_t page = PageRow(c, a.token_slot[t]).at(position / c.page_size);
      const int64_t offset = position % c.page_size;
      for (int64_t h = 0; h < c.kv_heads; ++h) {
        copy(a.k + t * a.k_token + h * a.k_head,
             c.keys + page * c.k_page + h * c.k_head + offset * c.k_token, c.head_dim);
        copy(a.v + t * a.v_token + h * a.v_head,
             c.values + page * c.v_page + h * c.v_head + offset * c.v_token, c.head_dim);
      }
    }
  });
  return kOk;
}

int silu_and_mul(const SiluArgs& a) {
  parallel(a.rows, rows_per_piece(2 * a.inter), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = a.x + r * a.x_stride;
      silu_row(x, x + a.inter, a.out + r * a.inter, a.inter);
    }
  });
  return kOk;
}

}  // namespace tokenspeed::cpu::TS_ISA
