// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tokenspeed {

// The digests of the last plans, to be compared with another rank's.
class Digests {
 public:
  void add(std::int64_t step, std::uint64_t digest) noexcept { at(step) = {step, digest}; }

  // Throws std::runtime_error when the other rank planned something else.
  void check(std::int64_t step, std::uint64_t digest) const {
    const Entry& entry = entries_[static_cast<std::size_t>(step) % kKept];
    if (step < 0 || entry.step != step) {
      throw std::invalid_argument("check_digest: step " + std::to_string(step) +
                                  " is not among the last " + std::to_string(kKept));
    }
    if (entry.digest != digest) {
      throw std::runtime_error(
          "the ranks have diverged: in step " + std::to_string(step) +
          " another rank planned something else; restart the engine and report it");
    }
  }

 private:
  struct Entry {
    std::int64_t step = -1;
    std::uint64_t digest = 0;
  };
  static constexpr std::size_t kKept = 64;

  Entry& at(std::int64_t step) noexcept { return entries_[static_cast<std::size_t>(step) % kKept]; }
  std::array<Entry, kKept> entries_;
};

}  // namespace tokenspeed
