// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drafts/grams.h"

namespace tokenspeed::drafts {

// The latest outputs of all namespaces, in a ring that does not grow: the oldest are overwritten.
// A search sees those of its own namespace alone, by comparing it and not by a hash.
class OutputPool {
 public:
  static constexpr int kLooks = 64;  // occurrences that a search looks at, latest first

  // Positions count all tokens that ever came; a position is in the ring at its lowest bits.
  using Position = std::uint64_t;

  // Takes at most `bytes` of memory; too few for a ring of a few tokens: keeps nothing. As if
  // `begin` tokens had come and gone already.
  explicit OutputPool(std::size_t bytes, Position begin = 0);

  std::size_t capacity() const noexcept { return capacity_; }  // tokens, separators included

  void add(Namespace ns, std::span<const TokenId> output) noexcept;

  // Where the end of `text` stands in an output of the namespace. What follows is copied to
  // `room`, which has kLooks x `most` tokens.
  void find(Namespace ns, std::span<const TokenId> text, std::size_t most, std::span<TokenId> room,
            Matches& matches) const noexcept;

 private:
  struct Entry {
    Namespace ns;
    TokenId token;
    Place back;  // how far before this place the same gram ended; 0 is none
  };

  Entry& at(Position position) noexcept { return ring_[position & (capacity_ - 1)]; }
  const Entry& at(Position position) const noexcept { return ring_[position & (capacity_ - 1)]; }
  Position oldest() const noexcept { return end_ - begin_ < capacity_ ? begin_ : end_ - capacity_; }
  // How far back from `position` that is whose lowest bits are `low`; 0 if it is gone.
  Place distance(Position position, Place low) const noexcept;
  std::size_t slot(Namespace ns, const TokenId* end) const noexcept;
  std::size_t match_length(Position place, std::span<const TokenId> text) const noexcept;
  std::span<const TokenId> copy(Position place, std::size_t most, TokenId* to) const noexcept;
  void push(Namespace ns, TokenId token) noexcept;

  std::size_t capacity_ = 0;  // a power of two, or 0
  Position begin_;
  Position end_;
  std::unique_ptr<Entry[]> ring_;
  std::vector<Place> latest_;  // by hash of namespace and gram: lowest bits of the position
};

}  // namespace tokenspeed::drafts
