// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "fuzz/random.h"
#include "types.h"

namespace tokenspeed::fuzz {

inline constexpr int kVocabulary = 3;  // small: answers collide with each other and with stop ids

// What the KV of a token is worth: a hash of its whole prefix and of the namespace.
using Kv = std::uint64_t;

inline Kv kv_of_nothing(Namespace ns) noexcept { return scramble(ns + 7919); }
inline Kv kv_after(Kv prefix, TokenId token) noexcept {
  return scramble(prefix * 31 + static_cast<Kv>(token) + 1);
}
inline TokenId sampled_from(Kv kv) noexcept {
  return static_cast<TokenId>((kv >> 33) % kVocabulary);
}

// What the client of a request asked for.
struct Question {
  RequestId id = 0;
  Namespace ns = 0;
  std::vector<TokenId> prompt;
  int max_new_tokens = 1;
  std::vector<TokenId> stop_ids;
  int priority = 0;
  int draft_tokens = 0;
  std::int64_t deadline_ms = 0;
};

// The one right course of a request: prompt and answer as one sequence, as far as anyone asks.
class Truth {
 public:
  explicit Truth(Question question) : question_(std::move(question)) {
    for (const TokenId token : question_.prompt) {
      add(token);
    }
  }

  const Question& question() const noexcept { return question_; }
  int prompt_size() const noexcept { return static_cast<int>(question_.prompt.size()); }

  TokenId token(int position) {
    extend(position + 1);
    return tokens_[static_cast<std::size_t>(position)];
  }
  // The KV up to and with `position`; of nothing at -1.
  Kv kv(int position) {
    extend(position + 1);
    return position < 0 ? kv_of_nothing(question_.ns) : kvs_[static_cast<std::size_t>(position)];
  }

  bool is_stop(TokenId token) const noexcept {
    const auto& stops = question_.stop_ids;
    return std::find(stops.begin(), stops.end(), token) != stops.end();
  }
  // Is the answer's token `index` its last one? (Provided that none before it is.)
  Finish finish_at(int index) {
    return is_stop(token(prompt_size() + index))   ? Finish::STOP
           : index + 1 >= question_.max_new_tokens ? Finish::LENGTH
                                                   : Finish::NONE;
  }

 private:
  void add(TokenId token) {
    const Kv prefix = kvs_.empty() ? kv_of_nothing(question_.ns) : kvs_.back();
    tokens_.push_back(token);
    kvs_.push_back(kv_after(prefix, token));
  }
  void extend(int size) {
    while (static_cast<int>(tokens_.size()) < size) {
      add(sampled_from(kvs_.back()));
    }
  }

  Question question_;
  std::vector<TokenId> tokens_;
  std::vector<Kv> kvs_;
};

}  // namespace tokenspeed::fuzz
