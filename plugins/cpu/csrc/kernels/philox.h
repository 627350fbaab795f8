// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// Philox4x32-10, a counter-based generator: a draw is a function of key and counter alone.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "vec.h"

namespace tokenspeed::cpu::TS_ISA {

using WideVec = uint64_t __attribute__((vector_size(kWidth * 4)));

// Products of the lower halves of each 64-bit lane.
TS_INLINE WideVec multiply_low(WideVec a, WideVec b) {
#if defined(__AVX512F__)
  return reinterpret_cast<WideVec>(
      _mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<WideVec>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<WideVec>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}

struct Product {
  UintVec high, low;
};

// 32 x 32 -> 64 bit products, as words. Even and odd lanes are multiplied apart and interleaved.
TS_INLINE Product multiply(UintVec a, uint32_t factor) {
  const WideVec factors = WideVec{} + factor;
  const WideVec pairs = reinterpret_cast<WideVec>(a);
  const WideVec even = multiply_low(pairs, factors), odd = multiply_low(pairs >> 32, factors);
  const WideVec upper = WideVec{} + 0xffffffff00000000u;
  return {reinterpret_cast<UintVec>((even >> 32) | (odd & upper)),
          reinterpret_cast<UintVec>((even & ~upper) | (odd << 32))};
}

// First output word for counters (ids, position, 0) under one key, kWidth ids at a time.
TS_INLINE UintVec philox(UintVec ids, uint64_t position, uint64_t key) {
  UintVec c0 = ids, c1 = UintVec{} + static_cast<uint32_t>(position);
  UintVec c2 = UintVec{} + static_cast<uint32_t>(position >> 32), c3 = {};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const Product a = multiply(c0, 0xD2511F53), b = multiply(c2, 0xCD9E8D57);
    c0 = b.high ^ c1 ^ k0;
    c2 = a.high ^ c3 ^ k1;
    c1 = b.low;
    c3 = a.low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

}  // namespace tokenspeed::cpu::TS_ISA
