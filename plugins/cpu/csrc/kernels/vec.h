// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// Vectors of the width this translation unit is compiled for, and the arithmetic kernels share.
//
// Kernel sources are compiled once per instruction set, each into a namespace of its own. They must
// not instantiate inline functions of other headers (no std containers, no std::max): the linker
// keeps one copy of such a function, and that could be the one an older CPU cannot run.

#include <cstdint>

#ifndef TS_ISA
#error "TS_ISA names the namespace of this build, such as v4"
#endif

namespace tokenspeed::cpu::TS_ISA {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
constexpr int kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
constexpr int kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kWidth = 4;
constexpr int kRegisters = 32;
#else
constexpr int kWidth = 4;
constexpr int kRegisters = 16;
#endif

using Vec = float __attribute__((vector_size(kWidth * 4)));
using IntVec = int32_t __attribute__((vector_size(kWidth * 4)));
using UintVec = uint32_t __attribute__((vector_size(kWidth * 4)));
using LooseVec = float __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));

#define TS_INLINE inline __attribute__((always_inline))

TS_INLINE Vec load(const float* p) { return *reinterpret_cast<const LooseVec*>(p); }
TS_INLINE void store(float* p, Vec v) { *reinterpret_cast<LooseVec*>(p) = v; }
TS_INLINE Vec splat(float x) { return x - Vec{}; }

template <class T>
TS_INLINE T min_of(T a, T b) {
  return a < b ? a : b;
}
template <class T>
TS_INLINE T max_of(T a, T b) {
  return a > b ? a : b;
}
template <class T>
TS_INLINE T clamp(T x, T low, T high) {
  return x < low ? low : x > high ? high : x;
}

TS_INLINE Vec max_of(Vec a, Vec b) { return a > b ? a : b; }
TS_INLINE Vec min_of(Vec a, Vec b) { return a < b ? a : b; }

// One lane made of all lanes, halves joined with halves: log2 steps, where one behind the other would
// wait for each.
template <class Join, class Lanes, int kStep = kWidth / 2>
TS_INLINE auto joined(Lanes v) {
  if constexpr (kStep == 0) {
    return v[0];
  } else {
    IntVec other;
    for (int i = 0; i < kWidth; ++i) other[i] = i ^ kStep;
    return joined<Join, Lanes, kStep / 2>(Join{}(v, __builtin_shuffle(v, other)));
  }
}

struct Larger {
  template <class Lanes>
  TS_INLINE Lanes operator()(Lanes a, Lanes b) const {
    return a > b ? a : b;
  }
};
struct Sum {
  template <class Lanes>
  TS_INLINE Lanes operator()(Lanes a, Lanes b) const {
    return a + b;
  }
};

TS_INLINE float sum(Vec v) { return joined<Sum>(v); }
// Of lanes that are numbers.
TS_INLINE float maximum(Vec v) { return joined<Larger>(v); }

TS_INLINE IntVec bits(Vec v) { return reinterpret_cast<IntVec>(v); }
TS_INLINE Vec from_bits(IntVec v) { return reinterpret_cast<Vec>(v); }

// e^x to about 2 ulp; 0 below -87.3, infinite above 88; NaN stays NaN.
TS_INLINE Vec exp(Vec x) {
  const Vec clipped = min_of(splat(88.0f), max_of(splat(-87.3f), x));
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = clipped * 1.44269504088896341f + magic;
  const Vec whole = shifted - magic;
  const Vec r = clipped - whole * 0.693359375f - whole * -2.12194440e-4f;
  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Vec y = from_bits(bits(p) + (bits(shifted) << 23));
  const Vec flushed = x < splat(-87.3f) ? Vec{} : y;
  return x <= splat(88.0f) ? flushed : x + __builtin_inff();  // NaN + inf is NaN
}

// ln(1 + r) without its exponent part, for r in [sqrt(1/2) - 1, sqrt(2) - 1]: r - r^2 / 2 + ...
TS_INLINE Vec log_polynomial(Vec r) {
  Vec p = splat(7.0376836292e-2f);
  p = p * r - 1.1514610310e-1f;
  p = p * r + 1.1676998740e-1f;
  p = p * r - 1.2420140846e-1f;
  p = p * r + 1.4249322787e-1f;
  p = p * r - 1.6668057665e-1f;
  p = p * r + 2.0000714765e-1f;
  p = p * r - 2.4999993993e-1f;
  p = p * r + 3.3333331174e-1f;
  return p * r * r * r - r * r * 0.5f;
}

// ln x for positive normal x, to about 1 ulp.
TS_INLINE Vec log(Vec x) {
  const IntVec offset = bits(x) - 0x3f3504f3;  // relative to sqrt(1/2)
  const Vec exponent = __builtin_convertvector(offset >> 23, Vec);
  const Vec r = from_bits((offset & 0x007fffff) + 0x3f3504f3) - 1.0f;
  return r + (log_polynomial(r) + exponent * -2.12194440e-4f) + exponent * 0.693359375f;
}

// ln(1 + r) for r in [-1/2, 0], exact to the last digits where r is close to 0.
TS_INLINE Vec log_of_one_plus(Vec r) {
  return r > splat(-0.25f) ? r + log_polynomial(r) : log(1.0f + r);
}

// One step of a reduction tree. `a` and `b` each hold segments of `kSegment` lanes; the result
// holds the segments of a, then of b, each folded to half its length.
template <int kSegment>
TS_INLINE Vec fold(Vec a, Vec b) {
  IntVec low, high;
  for (int i = 0; i < kWidth; ++i) {
    low[i] = i / (kSegment / 2) * kSegment + i % (kSegment / 2);
    high[i] = low[i] + kSegment / 2;
  }
  return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
}

// Lane i of the result is the sum over the lanes of v[i * kStride]. Clobbers v.
template <int kSegment = kWidth>
TS_INLINE Vec sums(Vec* v) {
  if constexpr (kSegment == 1) {
    return v[0];
  } else {
    for (int i = 0; i < kSegment / 2; ++i) v[i] = fold<kSegment>(v[2 * i], v[2 * i + 1]);
    return sums<kSegment / 2>(v);
  }
}

// Transposes a square of kWidth vectors.
template <int kStep = 1>
TS_INLINE void transpose(Vec (&v)[kWidth]) {
  if constexpr (kStep < kWidth) {
    IntVec even, odd;
    for (int i = 0; i < kWidth; ++i) {
      const int group = i / (2 * kStep) * (2 * kStep);
      const bool second = i % (2 * kStep) >= kStep;
      even[i] = second ? kWidth + group + i % kStep : i;
      odd[i] = second ? kWidth + i : group + kStep + i % kStep;
    }
    for (int i = 0; i < kWidth; i += 2 * kStep) {
      for (int j = i; j < i + kStep; ++j) {
        const Vec a = v[j], b = v[j + kStep];
        v[j] = __builtin_shuffle(a, b, even);
        v[j + kStep] = __builtin_shuffle(a, b, odd);
      }
    }
    transpose<2 * kStep>(v);
  }
}

}  // namespace tokenspeed::cpu::TS_ISA
