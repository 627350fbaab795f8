// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// Log-probabilities of a token and of the likeliest ones.

#include "../pool.h"
#include "kernels.h"
#include "vec.h"

namespace tokenspeed::cpu::TS_ISA {
namespace {

constexpr int64_t kBlock = 256;  // logits that are summed before they are added in double

// Whether any lane is not 0, 64 bits at a time.
TS_INLINE bool any(IntVec lanes) {
  using Halves = int64_t __attribute__((vector_size(kWidth * 4)));
  const Halves halves = reinterpret_cast<Halves>(lanes);
  int64_t found = 0;
  for (int i = 0; i < kWidth / 2; ++i) found |= halves[i];
  return found != 0;
}

TS_INLINE Vec load_padded(const float* x, int64_t i, int64_t n) {
  if (i + kWidth <= n) return load(x + i);
  Vec v = splat(-__builtin_inff());
  for (int lane = 0; lane < n - i; ++lane) v[lane] = x[i + lane];
  return v;
}

float largest(const float* x, int64_t n) {
  Vec top = splat(-__builtin_inff());
  for (int64_t i = 0; i < n; i += kWidth) top = max_of(load_padded(x, i, n), top);
  return maximum(top);
}

// ln of the sum of e^x.
double log_sum(const float* x, int64_t n, float peak) {
  double total = 0;
  for (int64_t b = 0; b < n; b += kBlock) {
    Vec part = {};
    for (int64_t i = b; i < min_of(b + kBlock, n); i += kWidth) {
      part += exp(load_padded(x, i, n) - peak);
    }
    total += sum(part);
  }
  return peak + __builtin_log(total);
}

// The largest logits so far in falling order, equals by rising id.
struct Best {
  int32_t* ids;
  float* values;
  int64_t room, count = 0;

  // Candidates come by rising id: one that only equals the last has no place.
  TS_INLINE bool has_place(float value) const { return count < room || value > values[count - 1]; }

  void insert(float value, int64_t id) {
    int64_t at = count < room ? count++ : room - 1;
    for (; at > 0 && values[at - 1] < value; --at) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = static_cast<int32_t>(id);
  }
};

// Whether any of four vectors of logits is above a bound.
TS_INLINE bool any_above(const float* x, Vec bound) {
  const IntVec first = (load(x) > bound) | (load(x + kWidth) > bound);
  return any(first | (load(x + 2 * kWidth) > bound) | (load(x + 3 * kWidth) > bound));
}

void collect(const float* x, int64_t n, Best& best) {
  constexpr int kStep = 4 * kWidth;
  for (int64_t i = 0; i < n; i += kStep) {
    if (best.count == best.room && i + kStep <= n &&
        !any_above(x + i, splat(best.values[best.count - 1]))) {
      continue;
    }
    for (int64_t j = i; j < min_of(i + kStep, n); ++j) {
      if (best.has_place(x[j])) best.insert(x[j], j);
    }
  }
}

void write_row(const LogprobsArgs& a, int64_t row) {
  const int64_t slot = clamp<int64_t>(a.slot[row], 0, a.slots - 1);
  const int64_t count = min_of<int64_t>(a.wanted[slot * a.wanted_stride], a.most);
  const int64_t token = a.token[row];
  if (count <= 0 || token < 0 || token >= a.vocab) return;
  const float* x = a.logits + row * a.logits_stride;
  const double total = log_sum(x, a.vocab, largest(x, a.vocab));
  int32_t* ids = a.top_id + slot * a.id_stride;
  float* values = a.top_value + slot * a.value_stride;
  ids[0] = static_cast<int32_t>(token);
  values[0] = static_cast<float>(x[token] - total);
  if (count == 1) return;
  Best best{ids + 1, values + 1, count - 1};
  collect(x, a.vocab, best);
  for (int64_t i = 0; i < best.count; ++i) {
    best.values[i] = static_cast<float>(best.values[i] - total);
  }
}

}  // namespace

int logprobs(const LogprobsArgs& a) {
  if (a.slots <= 0 || a.vocab <= 0) return a.rows ? kUnsupported : kOk;
  parallel(a.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) write_row(a, row);
  });
  return kOk;
}

}  // namespace tokenspeed::cpu::TS_ISA
