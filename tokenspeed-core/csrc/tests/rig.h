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

#include "schedule/capacity.h"
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
  std::vector<CacheGroupConfig> groups = {};  // empty: one full group of page_size
  int host_pages = 0;
  int max_row_tokens = 1;
  int aging_ms = 10'000;
  int max_bypass = 16;
  bool retention = true;
  bool kv_events = false;
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
  int group = 0;
  auto operator<=>(const Delta&) const = default;
};

struct Move {
  TransferId transfer;
  PageId source;
  PageId target;
  auto operator<=>(const Move&) const = default;
};

struct Step {
  PlanSummary summary;
  std::vector<Row> rows;
  std::vector<Delta> deltas;
  std::vector<std::pair<PageId, PageId>> copies;
  std::vector<Move> stores;
  std::vector<Move> loads;

  const Row* row_of(RequestId id) const {
    const auto it = std::find_if(rows.begin(), rows.end(),
                                 [id](const Row& row) { return row.request == id; });
    return it == rows.end() ? nullptr : &*it;
  }
};

inline Tokens operator+(Tokens tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

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
    const auto groups = scheduler.layout().groups().size();
    const auto deltas = groups * (rows + static_cast<std::size_t>(longest_table(
                                             scheduler.config(), scheduler.layout())));
    const auto copies =
        static_cast<std::size_t>(max_copies(scheduler.config(), scheduler.layout()));
    const auto moves =
        static_cast<std::size_t>(max_transfer_pages(scheduler.config(), scheduler.layout()));
    for (auto* column : {&copy_source_, &copy_target_}) column->resize(copies);
    for (auto* column : {&store_source_, &store_target_, &load_source_, &load_target_}) {
      column->resize(moves);
    }
    store_transfer_.resize(moves);
    load_transfer_.resize(moves);
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
    return scheduler.submit({id, prompt, max_new_tokens, stop_ids, ns, 0, 0, deadline_ms, 0});
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
    for (int g = 0; g < step.summary.num_groups; ++g) {
      const std::size_t row =
          delta_slot_.size() / static_cast<std::size_t>(step.summary.num_groups);
      for (int i = 0; i < step.summary.num_deltas[static_cast<std::size_t>(g)]; ++i) {
        const auto d = static_cast<std::size_t>(g) * row + static_cast<std::size_t>(i);
        step.deltas.push_back(
            {delta_slot_[d], delta_epoch_[d], delta_index_[d], delta_page_[d], g});
      }
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(step.summary.num_copies); ++i) {
      step.copies.emplace_back(copy_source_[i], copy_target_[i]);
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(step.summary.num_stores); ++i) {
      step.stores.push_back({store_transfer_[i], store_source_[i], store_target_[i]});
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(step.summary.num_loads); ++i) {
      step.loads.push_back({load_transfer_[i], load_source_[i], load_target_[i]});
    }
    if (step.rows.empty()) {  // nobody would carry them out
      REQUIRE(step.deltas.empty());
      REQUIRE(step.copies.empty());
    }
    check();
    check_page_tables(step);
    return step;
  }

  // Ends every transfer of a step.
  void ack(const Step& step, bool ok = true) {
    for (const auto* moves : {&step.stores, &step.loads}) {
      for (const Move& move : *moves) {
        scheduler.ack(move.transfer, ok);  // once per page: all but the first are duplicates
      }
    }
    check();
  }

  // Every row that emits returns what `answers` has for its request, or else one 1000.
  void commit_tokens(const Step& step, const std::map<RequestId, Tokens>& answers) {
    std::vector<std::int32_t> counts;
    const auto width = static_cast<std::size_t>(scheduler.config().max_row_tokens);
    Tokens ids;
    for (const Row& row : step.rows) {
      const auto it = answers.find(row.request);
      Tokens answer = it != answers.end() ? it->second : Tokens{1000};
      if ((row.flags & EMITS) == 0) answer.clear();
      counts.push_back(static_cast<std::int32_t>(answer.size()));
      answer.resize(width, -1);
      ids.insert(ids.end(), answer.begin(), answer.end());
    }
    scheduler.commit(step.summary.step,
                     {counts, ids, std::vector<std::uint8_t>(step.rows.size(), 0)});
    check();
  }

  // Every row that emits returns `token`, except those named in `tokens`; -2 fails a row.
  void commit(const Step& step, TokenId token = 1000, std::map<RequestId, TokenId> tokens = {}) {
    std::vector<std::int32_t> counts;
    const auto width = static_cast<std::size_t>(scheduler.config().max_row_tokens);
    Tokens ids;
    std::vector<std::uint8_t> failed;
    for (const Row& row : step.rows) {
      const TokenId id = tokens.count(row.request) != 0 ? tokens[row.request] : token;
      failed.push_back(id == -2 ? 1 : 0);
      counts.push_back(id != -2 && (row.flags & EMITS) != 0 ? 1 : 0);
      ids.push_back(id);
      ids.resize(counts.size() * width, -1);
    }
    if (!step.rows.empty()) {
      scheduler.commit(step.summary.step, {counts, ids, failed});
    }
    check();
  }

  Step run(TokenId token = 1000) {
    Step step = plan();
    commit(step, token);
    ack(step);
    return step;
  }

  void run_until_idle(int max_steps = 1000) {
    while (scheduler.has_work()) {
      REQUIRE(max_steps-- > 0);
      run();
    }
  }

  // Plans ahead of the oldest uncommitted step by up to `depth` steps until nobody is alive;
  // `commit_oldest` takes that step.
  template <class F>
  void run_ahead(std::size_t depth, F&& commit_oldest) {
    std::vector<Step> in_flight;
    for (int steps = 0; scheduler.has_work(); ++steps) {
      REQUIRE(steps < 2000);
      const Step step = plan();
      if (!step.rows.empty()) in_flight.push_back(step);
      if (in_flight.size() > depth || (step.rows.empty() && !in_flight.empty())) {
        commit_oldest(in_flight.front());
        in_flight.erase(in_flight.begin());
      }
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
      device_tables_[{delta.group, delta.slot}][delta.index] = delta.page;
    }
    for (const Row& row : step.rows) {
      for (int g = 0; g < scheduler.layout().num_groups(); ++g) {
        check_page_table(row, g);
      }
    }
  }

  void check_page_table(const Row& row, int g) {
    const Group& group = scheduler.layout().group(g);
    const std::vector<PageId> table = scheduler.page_table(row.request, g);
    const bool state = group.kind == Kind::STATE;
    const int pages = state ? 1 : ceil_div(row.kv_len, group.page_size);
    REQUIRE(static_cast<int>(table.size()) >= pages);
    const int read = state ? 0
                           : Layout::first_read(group.kind, group.window, row.kv_len - row.count) /
                                 group.page_size;
    for (int i = read; i < static_cast<int>(table.size()); ++i) {
      const PageId page = table[static_cast<std::size_t>(i)];
      REQUIRE(page != kNullPage);
      REQUIRE(device_tables_[{g, row.slot}][i] == page);
    }
  }

  PlanView view() {
    return {request_,        slot_,         epoch_,        flags_,       start_,
            kv_len_,         token_,        position_,     delta_slot_,  delta_epoch_,
            delta_index_,    delta_page_,   copy_source_,  copy_target_, store_transfer_,
            store_source_,   store_target_, load_transfer_, load_source_, load_target_};
  }

  Scheduler scheduler;

 private:
  static Config make_config(const Shape& shape, int max_model_len) {
    Config config;
    config.groups = shape.groups;
    if (config.groups.empty()) {
      config.groups = {{"full", shape.page_size, 0}};
    }
    config.host_pages = shape.host_pages;
    config.max_row_tokens = shape.max_row_tokens;
    config.aging_ms = shape.aging_ms;
    config.max_bypass = shape.max_bypass;
    config.retention = shape.retention;
    config.kv_events = shape.kv_events;
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
  std::map<std::pair<int, SlotId>, std::map<int, PageId>> device_tables_;
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
  std::vector<PageId> copy_source_, copy_target_;
  std::vector<PageId> store_source_, store_target_, load_source_, load_target_;
  std::vector<TransferId> store_transfer_, load_transfer_;
};

}  // namespace tokenspeed::test
