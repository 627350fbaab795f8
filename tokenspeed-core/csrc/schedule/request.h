// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/prefix.h"
#include "cache/retention.h"
#include "fsm/states.h"
#include "types.h"

namespace tokenspeed {

struct Request;

// A waiting request's interest in the blocks that another one computes right now.
struct ProviderWait {
  const Request* provider = nullptr;  // null: waits for nobody
  std::uint64_t arrival = 0;          // these two say whether it still is the same run of the
  std::uint32_t admissions = 0;       // same request; a provider can end or be retracted
  int block = 0;                      // the next block that both have, not yet published
  int progress = 0;                   // the provider's computed tokens when last looked at
  std::int64_t looked_at = -1;        // the step in whose plan that was
  int idle_plans = 0;                 // plans without progress
  bool given_up = false;              // waited long enough: admit anyway
};

// What decides about a request's turn. `rank` is the time at which a request of class 0 would
// have come in its place: it never changes, so a class is worth so much waiting and no more.
struct Turn {
  std::int64_t rank = 0;
  int bypassed = 0;             // how often it was passed while it was first
  int cached_hint = -1;         // cached blocks when it was first looked at; -1: not yet
  std::uint64_t misfit_at = 0;  // the cache's version when it did not fit; 0: not known to
};

// A request from submit to its last commit. What it owns on the device is in `state`; the rest
// is facts and counts.
struct Request {
  RequestId id = 0;
  std::uint64_t arrival = 0;  // unique; breaks every tie
  Namespace ns = 0;
  std::int64_t submitted_ms = 0;
  std::int64_t deadline_ms = 0;  // 0: none
  int prompt_len = 0;            // as submitted
  int max_new_tokens = 0;
  int draft_tokens = 0;  // the most that a decode row verifies
  std::vector<TokenId> stop_ids;

  std::vector<TokenId> drafts;    // guesses at what follows the tokens
  std::int64_t drafts_step = -1;  // the step whose plan they are for

  std::vector<TokenId> tokens;  // prompt and committed output; room for all of them
  std::vector<PageKey> keys;    // of the full blocks of tokens; room for all of them

  int prefill_end = 0;      // tokens that this run computes as its prompt
  int computed = 0;         // KV length, committed
  int planned = 0;          // the most that it can be once the steps in flight are done
  int planned_outputs = 0;  // output tokens, with the most that are in flight
  int in_flight = 0;        // uncommitted steps with a row of this request
  int cached_tokens = 0;    // of the first run
  int loading_tokens = 0;   // of this run's, those that come from the host tier
  int promoted = 0;         // a chunk ends here, so that the state of the prefix can be kept
  std::uint32_t admissions = 0;
  bool is_counted = false;  // its hits are in the counters
  bool has_row = false;     // this run was part of a step, which told the device its page table
  bool unpublishable = false;
  ReturnHistory history;
  ProviderWait wait;
  Turn turn;

  Request* previous = nullptr;  // neighbours in the waiting queue
  Request* next = nullptr;

  fsm::State state;

  int outputs() const noexcept { return static_cast<int>(tokens.size()) - prompt_len; }
  // KV length at its end: the last sampled token never becomes an input.
  int final_kv_len() const noexcept { return prompt_len + max_new_tokens - 1; }
  bool prompt_planned() const noexcept { return planned >= prefill_end; }
  // Whether the next input is known here: no step in flight is still to tell it.
  bool next_input_known() const noexcept {
    return in_flight == 0 && planned + 1 == static_cast<int>(tokens.size());
  }
  Prefix prefix() const noexcept { return {ns, tokens, keys}; }
  bool before(const Request& other) const noexcept {
    return turn.rank != other.turn.rank ? turn.rank < other.turn.rank : arrival < other.arrival;
  }
};

}  // namespace tokenspeed
