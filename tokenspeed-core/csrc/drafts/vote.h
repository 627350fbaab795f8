// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <span>

#include "drafts/grams.h"

namespace tokenspeed::drafts {

// The chance below which a guess ends, as `vote` estimates it.
inline constexpr double kLeastChance = 0.4;

// Writes into `guess` what most of the matches say, token by token, and returns how many tokens.
//
// At each token those that said otherwise before have no voice any more, and a draw goes to the
// first. Of `agreeing` voices among `voices`, behind a match of `length` tokens, the token's chance
// is taken to be agreeing / voices x (1 - 1 / (length + voices)): the more has been the same, the
// more will be. So a guess behind one match gets about as long as the match.
std::size_t vote(const Matches& matches, std::span<TokenId> guess) noexcept;

}  // namespace tokenspeed::drafts
