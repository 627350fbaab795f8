// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <span>
#include <vector>

#include "drafts/grams.h"

namespace tokenspeed::drafts {

// One request's own tokens, and for each place the place before it where the same gram ended: the
// chains of hashes that compressors of the LZ77 kind find their matches by. 12 to 16 bytes a token.
class Text {
 public:
  static constexpr int kLooks = 256;  // occurrences that a search looks at, latest first

  std::span<const TokenId> tokens() const noexcept { return tokens_; }

  void append(std::span<const TokenId> tokens);

  // Where the end of the text stood before; each match has at most `most` tokens that follow.
  void find(std::size_t most, Matches& matches) const noexcept;

 private:
  void index(std::size_t begin);
  std::size_t match_length(std::size_t place) const noexcept;

  std::vector<TokenId> tokens_;
  std::vector<Place> earlier_;  // by place, those before kGram included: 0 is none
  std::vector<Place> latest_;   // by hash of a gram; a power of two
};

}  // namespace tokenspeed::drafts
