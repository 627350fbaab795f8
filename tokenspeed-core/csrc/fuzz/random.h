// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <initializer_list>

namespace tokenspeed::fuzz {

constexpr std::uint64_t scramble(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The same numbers everywhere, so that a seed names a run. (SplitMix64; the standard's
// distributions differ between libraries.)
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept { return scramble(state_ += 0x9e3779b97f4a7c15ULL); }
  int below(int bound) noexcept {
    return static_cast<int>(next() % static_cast<std::uint64_t>(bound));
  }
  int between(int low, int high) noexcept { return low + below(high - low + 1); }
  bool chance(int percent) noexcept { return below(100) < percent; }

  template <class T>
  T pick(std::initializer_list<T> values) noexcept {
    return values.begin()[below(static_cast<int>(values.size()))];
  }

 private:
  std::uint64_t state_;
};

}  // namespace tokenspeed::fuzz
