// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// Minus infinity for the tokens that a grammar forbids.

#include "../pool.h"
#include "kernels.h"
#include "vec.h"

namespace tokenspeed::cpu::TS_ISA {
namespace {

constexpr int64_t kWord = 32;            // tokens of one word of a mask
constexpr int64_t kSerialLogits = 131072;  // fewer are done sooner than a thread wakes
constexpr float kMinusInfinity = -__builtin_inff();

TS_INLINE IntVec lanes() {
  IntVec v;
  for (int i = 0; i < kWidth; ++i) v[i] = i;
  return v;
}

// The tokens of one word.
TS_INLINE void forbid(float* logits, int32_t word) {
  for (int first = 0; first < kWord; first += kWidth) {
    const IntVec kept = (IntVec{} + word) >> (lanes() + first) & 1;
    store(logits + first, kept != 0 ? load(logits + first) : splat(kMinusInfinity));
  }
}

void forbid_row(float* logits, const int32_t* mask, int64_t vocab) {
  int64_t i = 0;
  for (; i + kWord <= vocab; i += kWord) {
    const int32_t word = mask[i / kWord];
    if (word != -1) forbid(logits + i, word);
  }
  for (; i < vocab; ++i) {
    if (!(mask[i / kWord] >> i % kWord & 1)) logits[i] = kMinusInfinity;
  }
}

}  // namespace

int mask_logits(const MaskLogitsArgs& a) {
  const int64_t piece = max_of<int64_t>(1, kSerialLogits / max_of<int64_t>(1, a.vocab));
  parallel(a.masks, piece, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const int64_t row = a.row[m];
      if (row < 0 || row >= a.rows) continue;
      forbid_row(a.logits + row * a.logits_stride, a.mask + m * a.mask_stride, a.vocab);
    }
  });
  return kOk;
}

}  // namespace tokenspeed::cpu::TS_ISA
