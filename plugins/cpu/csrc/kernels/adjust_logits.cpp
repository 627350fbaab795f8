// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// Penalties and biases of rows of logits, and what is noted of the tokens drawn from them.
//
// Compiled without contraction: each step rounds, as the ops' page says.

#include "../pool.h"
#include "kernels.h"
#include "vec.h"

namespace tokenspeed::cpu::TS_ISA {
namespace {

constexpr int64_t kRowsTogether = 4;  // in one piece of work

using LooseIntVec = int32_t __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));

struct Penalties {
  float repetition, frequency, presence;

  bool none() const { return repetition == 0 && frequency == 0 && presence == 0; }
};

Penalties penalties_of(const float* penalties, int64_t stride, int64_t slot) {
  const float* p = penalties + slot * stride;
  return {p[0], p[1], p[2]};
}

TS_INLINE Vec penalized(Vec x, IntVec counts, const Penalties& p) {
  const Vec repeated = x > 0.0f ? x / p.repetition : x * p.repetition;
  x = counts > 0 ? repeated : x;
  const IntVec times = counts >> 1;
  const Vec product = p.frequency * __builtin_convertvector(times, Vec);
  return times > 0 ? (x - product) - p.presence : x;
}

// Whether any count is not 0, 64 bits at a time.
TS_INLINE bool any(IntVec counts) {
  using Halves = int64_t __attribute__((vector_size(kWidth * 4)));
  const Halves halves = reinterpret_cast<Halves>(counts);
  int64_t found = 0;
  for (int i = 0; i < kWidth / 2; ++i) found |= halves[i];
  return found != 0;
}

// Few tokens of a vocabulary were ever seen: most vectors are passed over, four at a time.
void penalize(float* x, const int32_t* counts, int64_t vocab, const Penalties& p) {
  constexpr int kStep = 4 * kWidth;
  const auto seen = [&](int64_t i) { return *reinterpret_cast<const LooseIntVec*>(counts + i); };
  int64_t i = 0;
  for (; i + kStep <= vocab; i += kStep) {
    const IntVec first = seen(i) | seen(i + kWidth);
    if (!any(first | seen(i + 2 * kWidth) | seen(i + 3 * kWidth))) continue;
    for (int64_t j = i; j < i + kStep; j += kWidth) {
      store(x + j, penalized(load(x + j), seen(j), p));
    }
  }
  for (; i < vocab; ++i) {
    if (counts[i]) x[i] = penalized(splat(x[i]), IntVec{} + counts[i], p)[0];
  }
}

// The tokens that the guesses of a row's run are, up to its own: what the row stands behind.
struct Guessed {
  const int32_t* begin;
  const int32_t* end;

  // The smallest from `token` on; `none` if there is none.
  int64_t next(int64_t token, int64_t none) const {
    for (const int32_t* g = begin; g < end; ++g) {
      if (*g >= token && *g < none) none = *g;
    }
    return none;
  }

  int32_t times(int64_t token) const {
    int32_t found = 0;
    for (const int32_t* g = begin; g < end; ++g) found += *g == token;
    return found;
  }
};

Guessed guessed_of(const AdjustArgs& a, int64_t row) {
  if (!a.guess) return {};
  int64_t first = row;
  while (first > 0 && a.slot[first - 1] == a.slot[row]) --first;
  return {a.guess + first + 1, a.guess + row + 1};
}

// What was guessed counts once more, token by token; between them all is as without guesses.
void penalize(float* x, const int32_t* counts, int64_t vocab, const Penalties& p,
              const Guessed& guessed) {
  for (int64_t i = 0; i < vocab; ++i) {
    const int64_t token = guessed.next(i, vocab);
    penalize(x + i, counts + i, token - i, p);
    if (token < vocab) {
      const int32_t count = counts[token] + 2 * guessed.times(token);
      x[token] = penalized(splat(x[token]), IntVec{} + count, p)[0];
    }
    i = token;
  }
}

void bias(float* x, const AdjustArgs& a, int64_t slot, int64_t position) {
  const int32_t* id = a.bias_id + slot * a.id_stride;
  const float* value = a.bias_value + slot * a.value_stride;
  const int32_t* until = a.bias_until + slot * a.until_stride;
  for (int64_t i = 0; i < a.biases && until[i] != 0; ++i) {
    if (position < until[i] && id[i] >= 0 && id[i] < a.vocab) x[id[i]] += value[i];
  }
}

void adjust_row(const AdjustArgs& a, int64_t row) {
  const int64_t slot = clamp<int64_t>(a.slot[row], 0, a.slots - 1);
  float* x = a.logits + row * a.logits_stride;
  if (a.wanted[slot * a.wanted_stride] != 0) {
    __builtin_memcpy(a.kept + row * a.kept_stride, x, a.vocab * sizeof(float));
  }
  const Penalties p = penalties_of(a.penalties, a.penalties_stride, slot);
  if (!p.none()) {
    penalize(x, a.counts + slot * a.counts_stride, a.vocab, p, guessed_of(a, row));
  }
  bias(x, a, slot, a.position[row]);
}

}  // namespace

int adjust_logits(const AdjustArgs& a) {
  if (a.slots <= 0) return a.rows ? kUnsupported : kOk;
  parallel(a.rows, kRowsTogether, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) adjust_row(a, row);
  });
  return kOk;
}

int record_tokens(const RecordArgs& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t slot = a.slot[row], token = a.token[row];
    if (slot < 0 || slot >= a.slots) continue;
    a.last_token[slot] = token;
    if (token < 0 || token >= a.vocab) continue;
    if (penalties_of(a.penalties, a.penalties_stride, slot).none()) continue;
    a.counts[slot * a.counts_stride + token] += 2;
  }
  return kOk;
}

}  // namespace tokenspeed::cpu::TS_ISA
