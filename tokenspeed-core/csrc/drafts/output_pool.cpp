// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "drafts/output_pool.h"

#include <algorithm>
#include <bit>

namespace tokenspeed::drafts {
namespace {

constexpr TokenId kSeparator = -1;  // behind every output: no match or guess goes across
constexpr std::size_t kFewest = 64;
constexpr std::size_t kMost = std::size_t{1} << 30;  // distances have 32 bits

}  // namespace

OutputPool::OutputPool(std::size_t bytes, Position begin) : begin_(begin), end_(begin) {
  const std::size_t tokens = bytes / (sizeof(Entry) + sizeof(Place));
  if (tokens < kFewest) {
    return;
  }
  capacity_ = std::min(std::bit_floor(tokens), kMost);
  ring_ = std::make_unique_for_overwrite<Entry[]>(capacity_);  // memory is taken as it fills
  latest_.resize(capacity_);
}

void OutputPool::add(Namespace ns, std::span<const TokenId> output) noexcept {
  if (capacity_ == 0 || output.size() <= kGram) {
    return;
  }
  output = output.last(std::min(output.size(), capacity_ - 1));
  for (std::size_t i = 0; i < output.size(); ++i) {
    push(ns, output[i]);
    if (i >= kGram) {
      Place& latest = latest_[slot(ns, output.data() + i)];
      const Position place = end_ - 1;
      at(place).back = distance(place, latest);
      latest = static_cast<Place>(place);
    }
  }
  push(ns, kSeparator);
}

void OutputPool::find(Namespace ns, std::span<const TokenId> text, std::size_t most,
                      std::span<TokenId> room, Matches& matches) const noexcept {
  if (capacity_ == 0 || text.size() < kGram || end_ == begin_) {
    return;
  }
  TokenId* free = room.data();
  Position place = end_;
  Place back = distance(end_, latest_[slot(ns, text.data() + text.size())]);
  for (int looks = 0; back != 0 && looks < kLooks && !matches.full(); ++looks) {
    place -= back;
    if (place < oldest() + kGram) {
      return;
    }
    const std::size_t length = at(place).ns == ns ? match_length(place, text) : 0;
    if (matches.wants(length)) {
      // A slot that was not written for 2^32 tokens may lead to a gram that no slot is of, such as
      // an output's last: what nothing follows would only hide matches that say something.
      const std::span<const TokenId> follows = copy(place, most, free);
      if (!follows.empty()) {
        matches.add({length, follows});
        free += most;
      }
    }
    back = at(place).back;
  }
}

Place OutputPool::distance(Position position, Place low) const noexcept {
  const Place back = static_cast<Place>(position) - low;
  return back <= position - oldest() ? back : 0;
}

std::size_t OutputPool::slot(Namespace ns, const TokenId* end) const noexcept {
  return gram_hash(end, mix(ns, 1)) & (capacity_ - 1);
}

std::size_t OutputPool::match_length(Position place,
                                     std::span<const TokenId> text) const noexcept {
  const std::size_t most = std::min({kLongest, text.size(), std::size_t{place - oldest()}});
  std::size_t length = 0;
  while (length < most && at(place - 1 - length).token == text[text.size() - 1 - length]) {
    ++length;
  }
  return length;
}

std::span<const TokenId> OutputPool::copy(Position place, std::size_t most,
                                          TokenId* to) const noexcept {
  std::size_t count = 0;
  while (count < most && place + count < end_ && at(place + count).token != kSeparator) {
    to[count] = at(place + count).token;
    ++count;
  }
  return {to, count};
}

void OutputPool::push(Namespace ns, TokenId token) noexcept { at(end_++) = {ns, token, 0}; }

}  // namespace tokenspeed::drafts
