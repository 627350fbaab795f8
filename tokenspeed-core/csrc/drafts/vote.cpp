// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "drafts/vote.h"

#include <algorithm>
#include <array>

namespace tokenspeed::drafts {
namespace {

// Those of one search whose words so far were the guess.
struct Voices {
  std::array<std::span<const TokenId>, Matches::kMost> said;
  std::size_t count = 0;

  template <class Keep>
  void keep(Keep keep) noexcept {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (keep(said[i])) {
        said[kept++] = said[i];
      }
    }
    count = kept;
  }

  std::size_t agreeing(TokenId token, std::size_t at) const noexcept {
    return static_cast<std::size_t>(std::count_if(
        said.begin(), said.begin() + static_cast<std::ptrdiff_t>(count),
        [=](const auto& words) { return words[at] == token; }));
  }
};

}  // namespace

std::size_t vote(const Matches& matches, std::span<TokenId> guess) noexcept {
  Voices voices;
  for (const Match& match : matches.all()) {
    voices.said[voices.count++] = match.follows;
  }
  double chance = 1;
  for (std::size_t at = 0; at < guess.size(); ++at) {
    voices.keep([=](const auto& words) { return words.size() > at; });
    std::size_t most = 0;
    TokenId token = 0;
    for (std::size_t i = 0; i < voices.count && 2 * most <= voices.count; ++i) {
      const std::size_t agreeing = voices.agreeing(voices.said[i][at], at);
      if (agreeing > most) {
        most = agreeing;
        token = voices.said[i][at];
      }
    }
    if (voices.count == 0) {
      return at;
    }
    const auto all = static_cast<double>(voices.count);
    const double known = static_cast<double>(matches.length()) + all;
    chance *= static_cast<double>(most) / all * (1 - 1 / known);
    if (chance < kLeastChance) {
      return at;
    }
    guess[at] = token;
    voices.keep([=](const auto& words) { return words[at] == token; });
  }
  return guess.size();
}

}  // namespace tokenspeed::drafts
