// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/prefix_tree.h"
#include "fsm/states.h"
#include "types.h"

namespace tokenspeed {

struct Request;

// A waiting request's interest in the pages that another one computes right now.
struct ProviderWait {
  const Request* provider = nullptr;  // null: waits for nobody
  std::uint64_t arrival = 0;          // these two say whether it still is the same run of the
  std::uint32_t admissions = 0;       // same request; a provider can end or be retracted
  int page = 0;                       // the next page that both have, not yet published
  int progress = 0;                   // the provider's computed tokens when last looked at
  int idle_plans = 0;                 // plans since then
  bool given_up = false;              // waited long enough: admit anyway
};

// A request from submit to its last commit. What it owns on the device is in `state`; the rest
// is facts and counts.
struct Request {
  RequestId id = 0;
  std::uint64_t arrival = 0;  // unique; breaks every tie
  Namespace ns = 0;
  std::int64_t deadline_ms = 0;  // 0: none
  int prompt_len = 0;            // as submitted
  int max_new_tokens = 0;
  std::vector<TokenId> stop_ids;

  std::vector<TokenId> tokens;  // prompt and committed output; room for all of them
  std::vector<PageKey> keys;    // of the full pages of tokens; room for all of them

  int prefill_end = 0;      // tokens that this run computes as its prompt
  int computed = 0;         // KV length, committed
  int planned = 0;          // KV length once the steps in flight are done
  int planned_outputs = 0;  // output tokens, with those in flight
  int in_flight = 0;        // uncommitted steps with a row of this request
  int cached_tokens = 0;    // of the first admission
  std::uint32_t admissions = 0;
  ProviderWait wait;

  Request* previous = nullptr;  // neighbours in the waiting queue
  Request* next = nullptr;

  fsm::State state;

  int outputs() const noexcept { return static_cast<int>(tokens.size()) - prompt_len; }
  // KV length at its end: the last sampled token never becomes an input.
  int final_kv_len() const noexcept { return prompt_len + max_new_tokens - 1; }
  bool prompt_planned() const noexcept { return planned >= prefill_end; }
  Prefix prefix() const noexcept { return {ns, tokens, keys}; }
};

}  // namespace tokenspeed
