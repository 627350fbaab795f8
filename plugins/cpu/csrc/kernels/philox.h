// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// Philox4x32-10, a counter-based generator: a draw is a function of key and counter alone.

#include "vec.h"

namespace tokenspeed::cpu::TS_ISA {

// First output word for counters (ids, position, 0) under one key, kWidth ids at a time.
TS_INLINE UintVec philox(UintVec ids, uint64_t position, uint64_t key) {
  using Wide = uint64_t __attribute__((vector_size(kWidth * 8)));
  UintVec c0 = ids, c1 = UintVec{} + static_cast<uint32_t>(position);
  UintVec c2 = UintVec{} + static_cast<uint32_t>(position >> 32), c3 = {};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const Wide a = __builtin_convertvector(c0, Wide) * uint64_t{0xD2511F53};
    const Wide b = __builtin_convertvector(c2, Wide) * uint64_t{0xCD9E8D57};
    const UintVec high_a = __builtin_convertvector(a >> 32, UintVec);
    const UintVec high_b = __builtin_convertvector(b >> 32, UintVec);
    c0 = high_b ^ c1 ^ k0;
    c2 = high_a ^ c3 ^ k1;
    c1 = __builtin_convertvector(b, UintVec);
    c3 = __builtin_convertvector(a, UintVec);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

}  // namespace tokenspeed::cpu::TS_ISA
