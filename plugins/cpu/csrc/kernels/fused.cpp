// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// Ops that are several in one call: the kernels of their parts, one behind the other. With few rows
// a part takes about as long as a call from Python does, so that fewer calls are what counts; and
// the results are those of the parts, bit for bit.

#include "../pool.h"
#include "kernels.h"
#include "pages.h"

namespace tokenspeed::cpu::TS_ISA {
namespace {

// summed = x + residual; hidden, contiguous, is its norm.
int add_norm(const AddNormArgs& a, float* hidden) {
  for (int64_t r = 0; r < a.rows; ++r) {
    copy(a.residual + r * a.residual_stride, a.summed + r * a.summed_stride, a.hidden);
  }
  NormArgs norms{};
  norms.x = a.x, norms.residual = a.summed, norms.weight = a.weight, norms.out = hidden;
  norms.x_outer = a.x_stride, norms.inner = 1, norms.residual_stride = a.summed_stride;
  norms.rows = a.rows, norms.hidden = a.hidden, norms.eps = a.eps;
  return norm(norms);
}

// The norm, the product, which takes its output's place where it is `gated`, and the activation.
template <class Args, class Product>
int run_chain(const AddNormArgs& before, Args product, bool gated, Product run) {
  const int64_t rows = before.rows, k = before.hidden;
  if (rows == 0) return kOk;
  float* hidden = scratch(Scratch::kHidden, rows * k);
  float* wide = scratch(Scratch::kProduct, gated ? rows * product.n : 1);
  if (!hidden || !wide) return kNoMemory;
  if (const int status = add_norm(before, hidden)) return status;
  float* const out = product.out;
  product.x = hidden, product.x_stride = k;
  product.out = gated ? wide : out, product.out_stride = product.n;
  if (const int status = run(product)) return status;
  if (!gated) return kOk;
  return silu_and_mul({wide, out, product.n, rows, product.n / 2});
}

// Every head of `x` normalised, contiguous.
int norm_heads(const float* x, int64_t token, int64_t head, int64_t tokens, int64_t heads,
               int64_t head_dim, const float* weight, double eps, float* out) {
  NormArgs norms{};
  norms.x = x, norms.weight = weight, norms.out = out;
  norms.x_outer = token, norms.x_inner = head, norms.inner = heads;
  norms.rows = tokens * heads, norms.hidden = head_dim, norms.eps = eps;
  return norm(norms);
}

// Normalises queries in place, by way of `space`, and keys on their way to `keys`.
int norm_q_and_k(const RopeKvWriteArgs& a, float* space, float* keys) {
  const RopeArgs& r = a.rope;
  const int64_t dim = a.write.cache.head_dim;
  if (const int status = norm_heads(r.q, r.q_token, r.q_head, r.tokens, r.heads, dim, a.q_weight,
                                    a.eps, space)) {
    return status;
  }
  for (int64_t t = 0; t < r.tokens; ++t) {
    for (int64_t h = 0; h < r.heads; ++h) {
      copy(space + (t * r.heads + h) * dim, r.q + t * r.q_token + h * r.q_head, dim);
    }
  }
  return norm_heads(r.k, r.k_token, r.k_head, r.tokens, r.kv_heads, dim, a.k_weight, a.eps, keys);
}

}  // namespace

int add_norm_linear(const AddNormLinearArgs& a) {
  return run_chain(a.before, a.product, a.gated, linear);
}

int add_norm_linear_int8(const AddNormLinearInt8Args& a) {
  return run_chain(a.before, a.product, a.gated, linear_int8);
}

int rope_kv_write(const RopeKvWriteArgs& a) {
  const RopeArgs& r = a.rope;
  const int64_t dim = a.write.cache.head_dim, width = r.kv_heads * dim;
  if (r.tokens == 0) return kOk;
  float* keys = scratch(Scratch::kHidden, r.tokens * width);
  float* space = scratch(Scratch::kProduct, a.q_weight ? r.tokens * r.heads * dim : 1);
  if (!keys || !space) return kNoMemory;
  if (a.q_weight) {
    if (const int status = norm_q_and_k(a, space, keys)) return status;
  } else {
    for (int64_t t = 0; t < r.tokens; ++t) {
      for (int64_t h = 0; h < r.kv_heads; ++h) {
        copy(r.k + t * r.k_token + h * r.k_head, keys + t * width + h * dim, dim);
      }
    }
  }
  RopeArgs turned = r;
  turned.k = keys, turned.k_token = width, turned.k_head = dim;
  if (const int status = rope(turned)) return status;
  KvWriteArgs write = a.write;
  write.k = keys, write.k_token = width, write.k_head = dim;
  return kv_write(write);
}

}  // namespace tokenspeed::cpu::TS_ISA
