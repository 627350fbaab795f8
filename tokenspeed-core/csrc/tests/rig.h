// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "schedule/scheduler.h"

namespace tokenspeed::test {

using Tokens = std::vector<TokenId>;

inline Tokens counting(int from, int count) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

struct Shape {
  int page_size = 4;
  int num_pages = 16;
  int max_seqs = 4;
  int max_step_tokens = 16;
  double prefill_share = 0.75;
  int max_wait_steps = 256;
  bool prefix_cache = true;
  int hash_bits = 64;
};

struct Row {
  RequestId request;
  SlotId slot;
  Epoch epoch;
  int flags;
  int count;
  int kv_len;
  Tokens tokens;
};

struct Delta {
  SlotId slot;
  Epoch epoch;
  int index;
  PageId page;
  auto operator<=>(const Delta&) const = default;
};

struct Step {
  PlanSummary summary;
  std::vector<Row> rows;
  std::vector<Delta> deltas;

  const Row* row_of(RequestId id) const {
    const auto it = std::find_if(rows.begin(), rows.end(),
                                 [id](const Row& row) { return row.request == id; });
    return it == rows.end() ? nullptr : &*it;
  }
};

// What a request's client has heard.
struct Heard {
  Tokens tokens;
  Finish finish = Finish::NONE;
  TokenId stop_token = -1;
  int cached_tokens = 0;
};

// A scheduler with arrays to plan into. Every step checks that the ledger balances.
class Rig {
 public:
  explicit Rig(const Shape& shape = {}, int max_model_len = 200)
      : scheduler(make_config(shape, max_model_len)) {
    const auto rows = static_cast<std::size_t>(shape.max_seqs);
    const auto tokens = static_cast<std::size_t>(shape.max_step_tokens);
    const auto deltas =
        rows + static_cast<std::size_t>(scheduler.config().max_pages_per_request());
    request_.resize(rows);
    slot_.resize(rows);
    epoch_.resize(rows);
    flags_.resize(rows);
    start_.resize(rows + 1);
    kv_len_.resize(rows);
    token_.resize(tokens);
    position_.resize(tokens);
    delta_slot_.resize(deltas);
    delta_epoch_.resize(deltas);
    delta_index_.resize(deltas);
    delta_page_.resize(deltas);
  }

  SubmitResult submit(RequestId id, const Tokens& prompt, int max_new_tokens = 4,
                      const Tokens& stop_ids = {}, std::int64_t deadline_ms = 0,
                      Namespace ns = 0) {
    return scheduler.submit({id, prompt, max_new_tokens, stop_ids, ns, deadline_ms});
  }

  Step plan(std::int64_t now_ms = 0) {
    Step step;
    step.summary = scheduler.plan(now_ms, view());
    for (int i = 0; i < step.summary.num_rows; ++i) {
      const auto r = static_cast<std::size_t>(i);
      const int count = start_[r + 1] - start_[r];
      step.rows.push_back({request_[r], slot_[r], epoch_[r], flags_[r], count, kv_len_[r],
                           Tokens(token_.begin() + start_[r], token_.begin() + start_[r + 1])});
    }
    for (int i = 0; i < step.summary.num_deltas; ++i) {
      const auto d = static_cast<std::size_t>(i);
      step.deltas.push_back({delta_slot_[d], delta_epoch_[d], delta_index_[d], delta_page_[d]});
    }
    check();
    check_page_tables(step);
    return step;
  }

  // Every row that emits returns `token`, except those named in `tokens`; -2 fails a row.
  void commit(const Step& step, TokenId token = 1000, std::map<RequestId, TokenId> tokens = {}) {
    std::vector<std::int32_t> counts;
    Tokens ids;
    std::vector<std::uint8_t> failed;
    for (const Row& row : step.rows) {
      const TokenId id = tokens.count(row.request) != 0 ? tokens[row.request] : token;
      failed.push_back(id == -2 ? 1 : 0);
      counts.push_back(id != -2 && (row.flags & EMITS) != 0 ? 1 : 0);
      ids.push_back(id);
    }
    if (!step.rows.empty()) {
      scheduler.commit(step.summary.step, {counts, ids, failed});
    }
    check();
  }

  Step run(TokenId token = 1000) {
    Step step = plan();
    commit(step, token);
    return step;
  }

  void run_until_idle(int max_steps = 1000) {
    while (scheduler.has_work()) {
      REQUIRE(max_steps-- > 0);
      run();
    }
  }

  const Heard& heard(RequestId id) {
    hear();
    return heard_[id];
  }

  void check() {
    const Ledger ledger = scheduler.ledger();
    REQUIRE_MESSAGE(ledger.balanced, ledger.detail);
    REQUIRE(scheduler.counters().rejected_events == 0);
  }

  // The deltas of all steps so far, applied one after the other, are what the scheduler means.
  void check_page_tables(const Step& step) {
    for (const Delta& delta : step.deltas) {
      device_tables_[delta.slot][delta.index] = delta.page;
    }
    for (const Row& row : step.rows) {
      const std::vector<PageId> table = scheduler.page_table(row.request);
      REQUIRE(static_cast<int>(table.size()) >=
              ceil_div(row.kv_len, scheduler.config().page_size()));
      for (std::size_t i = 0; i < table.size(); ++i) {
        REQUIRE(table[i] != kNullPage);
        REQUIRE(device_tables_[row.slot][static_cast<int>(i)] == table[i]);
      }
    }
  }

  PlanView view() {
    return {request_, slot_,     epoch_,      flags_,       start_,       kv_len_,
            token_,   position_, delta_slot_, delta_epoch_, delta_index_, delta_page_};
  }

  Scheduler scheduler;

 private:
  static Config make_config(const Shape& shape, int max_model_len) {
    Config config;
    config.groups = {{"full", shape.page_size}};
    config.num_pages = shape.num_pages;
    config.max_seqs = shape.max_seqs;
    config.max_model_len = max_model_len;
    config.max_step_tokens = shape.max_step_tokens;
    config.prefill_share = shape.prefill_share;
    config.prefix_cache = shape.prefix_cache;
    config.max_wait_steps = shape.max_wait_steps;
    config.hash_bits = shape.hash_bits;
    return config;
  }

  void hear() {
    const UpdateColumns updates = scheduler.take_updates();
    for (std::size_t i = 0; i < updates.request.size(); ++i) {
      Heard& heard = heard_[updates.request[i]];
      CHECK_MESSAGE(heard.finish == Finish::NONE, "an update after the end");
      heard.tokens.insert(heard.tokens.end(), updates.tokens.begin() + updates.token_start[i],
                          updates.tokens.begin() + updates.token_start[i + 1]);
      heard.finish = static_cast<Finish>(updates.finish[i]);
      heard.stop_token = updates.stop_token[i];
      heard.cached_tokens = updates.cached_tokens[i];
    }
  }

  std::map<RequestId, Heard> heard_;
  std::map<SlotId, std::map<int, PageId>> device_tables_;
  std::vector<RequestId> request_;
  std::vector<SlotId> slot_;
  std::vector<Epoch> epoch_;
  std::vector<std::uint8_t> flags_;
  std::vector<std::int32_t> start_, kv_len_;
  std::vector<TokenId> token_;
  std::vector<std::int32_t> position_;
  std::vector<SlotId> delta_slot_;
  std::vector<Epoch> delta_epoch_;
  std::vector<std::int32_t> delta_index_;
  std::vector<PageId> delta_page_;
};

}  // namespace tokenspeed::test
