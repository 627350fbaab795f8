// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "drafts/suffix_drafter.h"

#include <algorithm>

#include "drafts/vote.h"

namespace tokenspeed::drafts {

void SuffixDrafter::begin(RequestId id, std::span<const TokenId> prompt, Namespace ns) {
  Request request;
  request.ns = ns;
  extend(request, prompt);
  request.prompt_len = request.text.tokens().size();
  requests_.insert_or_assign(id, std::move(request));
}

void SuffixDrafter::advance(RequestId id, std::span<const TokenId> tokens) {
  if (const auto found = requests_.find(id); found != requests_.end()) {
    extend(found->second, tokens);
  }
}

std::size_t SuffixDrafter::draft(RequestId id, std::span<TokenId> guess) {
  const auto found = requests_.find(id);
  if (found == requests_.end() || found->second.cut) {
    return 0;
  }
  const Request& request = found->second;
  const std::span<const TokenId> text = request.text.tokens();
  guess = guess.first(std::min(guess.size(), max_model_len_ - text.size()));
  if (guess.empty()) {
    return 0;
  }
  room_.resize(std::max(room_.size(), OutputPool::kLooks * guess.size()));
  Matches matches;
  request.text.find(guess.size(), matches);
  pool_.find(request.ns, text, guess.size(), room_, matches);
  return vote(matches, guess);
}

void SuffixDrafter::end(RequestId id) {
  if (const auto found = requests_.find(id); found != requests_.end()) {
    const Request& request = found->second;
    pool_.add(request.ns, request.text.tokens().subspan(request.prompt_len));
    requests_.erase(found);
  }
}

void SuffixDrafter::extend(Request& request, std::span<const TokenId> tokens) const {
  const std::size_t room = max_model_len_ - request.text.tokens().size();
  request.cut = request.cut || tokens.size() > room;
  request.text.append(tokens.first(std::min(tokens.size(), room)));
}

}  // namespace tokenspeed::drafts
