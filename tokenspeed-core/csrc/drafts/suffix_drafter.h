// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "drafts/output_pool.h"
#include "drafts/text.h"

namespace tokenspeed::drafts {

// Guesses that a request goes on as its own text, or a recent output of its namespace, went on
// where its last tokens stood before: prompt lookup decoding (A. Saxena, 2023) and its extension to
// earlier outputs, the longest suffix, and counts of what followed (SuffixDecoding, arXiv
// 2411.04975).
//
// Deterministic in its calls. No call but the first of a request costs more with a longer text,
// unless the table of the text doubles.
class SuffixDrafter {
 public:
  // A request's text ends at `max_model_len` tokens: what is past it is not kept, nor guessed.
  // The outputs of requests that ended take at most `pool_bytes`.
  SuffixDrafter(std::size_t max_model_len, std::size_t pool_bytes)
      : max_model_len_(max_model_len), pool_(pool_bytes) {}

  // A request that is there already begins anew.
  void begin(RequestId request, std::span<const TokenId> prompt, Namespace ns);
  // Unknown requests are passed over, here and below.
  void advance(RequestId request, std::span<const TokenId> tokens);
  // Writes into `guess` and returns how many tokens.
  std::size_t draft(RequestId request, std::span<TokenId> guess);
  // Releases all that it holds; its output goes to the pool.
  void end(RequestId request);

  std::size_t requests() const noexcept { return requests_.size(); }

 private:
  struct Request {
    Namespace ns = 0;
    std::size_t prompt_len = 0;
    Text text;
    bool cut = false;  // tokens past max_model_len came, so the end of the text is not its end
  };

  void extend(Request& request, std::span<const TokenId> tokens) const;

  std::size_t max_model_len_;
  OutputPool pool_;
  std::unordered_map<RequestId, Request> requests_;
  std::vector<TokenId> room_;  // of a search in the pool
};

}  // namespace tokenspeed::drafts
