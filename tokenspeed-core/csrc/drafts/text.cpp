// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "drafts/text.h"

#include <algorithm>
#include <bit>

namespace tokenspeed::drafts {
namespace {

constexpr std::size_t kFewest = 256;  // slots of the table

}  // namespace

void Text::append(std::span<const TokenId> tokens) {
  const std::size_t before = tokens_.size();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  earlier_.resize(tokens_.size() + 1);
  if (latest_.size() < tokens_.size()) {  // doubled, so that a token costs the same on average
    latest_.assign(std::max(kFewest, std::bit_ceil(tokens_.size())), 0);
    index(0);
  } else {
    index(before);
  }
}

// Every place past `begin`.
void Text::index(std::size_t begin) {
  const std::size_t mask = latest_.size() - 1;
  for (std::size_t place = std::max(begin + 1, kGram); place <= tokens_.size(); ++place) {
    Place& latest = latest_[gram_hash(tokens_.data() + place, 0) & mask];
    earlier_[place] = latest;
    latest = static_cast<Place>(place);
  }
}

void Text::find(std::size_t most, Matches& matches) const noexcept {
  Place place = tokens_.size() < kGram ? 0 : earlier_.back();
  for (int looks = 0; place != 0 && looks < kLooks && !matches.full(); ++looks) {
    const std::size_t length = match_length(place);
    if (matches.wants(length)) {
      const std::size_t known = tokens_.size() - place;
      matches.add({length, std::span(tokens_).subspan(place, std::min(most, known))});
    }
    place = earlier_[place];
  }
}

std::size_t Text::match_length(std::size_t place) const noexcept {
  const TokenId* const here = tokens_.data() + tokens_.size();
  const TokenId* const there = tokens_.data() + place;
  const std::ptrdiff_t most = static_cast<std::ptrdiff_t>(std::min(kLongest, place));
  std::ptrdiff_t length = 0;
  while (length < most && here[-1 - length] == there[-1 - length]) {
    ++length;
  }
  return static_cast<std::size_t>(length);
}

}  // namespace tokenspeed::drafts
