// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cache/mix.h"
#include "types.h"

namespace tokenspeed::drafts {

inline constexpr std::size_t kGram = 2;      // tokens of the shortest match
inline constexpr std::size_t kLongest = 32;  // a match is not looked at any further back

// A place is an index into a text; what ends there is the gram of the kGram tokens before it.
using Place = std::uint32_t;

// Of the gram that ends where `end` points to.
inline std::uint64_t gram_hash(const TokenId* end, std::uint64_t seed) noexcept {
  const std::uint64_t last = static_cast<std::uint32_t>(end[-1]);
  return mix(last << 32 | static_cast<std::uint32_t>(end[-2]), seed);
}

// What followed an earlier occurrence of a text's end.
struct Match {
  std::size_t length = 0;            // tokens before it that are the same, at most kLongest
  std::span<const TokenId> follows;  // what came then, as far as it is known and wanted
};

// The longest matches of one search: at most kMost of one length, the preferred first.
class Matches {
 public:
  static constexpr std::size_t kMost = 16;

  std::size_t length() const noexcept { return length_; }
  std::span<const Match> all() const noexcept { return {matches_.data(), count_}; }

  // Whether no further match can change anything.
  bool full() const noexcept { return length_ == kLongest && count_ == kMost; }
  // Whether a match of this length would be kept.
  bool wants(std::size_t length) const noexcept {
    return length >= kGram && (length > length_ || (length == length_ && count_ < kMost));
  }
  // One that is wanted; shorter ones go.
  void add(const Match& match) noexcept {
    if (match.length > length_) {
      length_ = match.length;
      count_ = 0;
    }
    matches_[count_++] = match;
  }

 private:
  std::size_t length_ = 0;
  std::size_t count_ = 0;
  std::array<Match, kMost> matches_;
};

}  // namespace tokenspeed::drafts
