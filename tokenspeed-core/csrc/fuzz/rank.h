// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "schedule/capacity.h"
#include "schedule/scheduler.h"

namespace tokenspeed::fuzz {

// The arrays that a plan is written to.
struct Arrays {
  Arrays(const Config& config, const Layout& layout)
      : num_groups(layout.num_groups()), capacity(longest_table(config, layout) + config.max_seqs) {
    const auto rows = static_cast<std::size_t>(config.max_seqs);
    const auto tokens = static_cast<std::size_t>(config.max_step_tokens);
    const auto deltas = static_cast<std::size_t>(num_groups * capacity);
    const auto copies = static_cast<std::size_t>(max_copies(config, layout));
    const auto moves = static_cast<std::size_t>(max_transfer_pages(config, layout));
    for (auto* array : {&row_slot, &row_kv_len}) array->resize(rows);
    for (auto* array : {&token_ids, &positions}) array->resize(tokens);
    for (auto* array : {&delta_slot, &delta_index, &delta_page}) array->resize(deltas);
    for (auto* array : {&copy_source, &copy_target}) array->resize(copies);
    for (auto* array : {&store_source, &store_target, &load_source, &load_target}) {
      array->resize(moves);
    }
    row_request.resize(rows);
    row_epoch.resize(rows);
    row_flags.resize(rows);
    row_query_start.resize(rows + 1);
    delta_epoch.resize(deltas);
    store_transfer.resize(moves);
    load_transfer.resize(moves);
  }

  PlanView view() noexcept {
    return {.row_request = row_request,
            .row_slot = row_slot,
            .row_epoch = row_epoch,
            .row_flags = row_flags,
            .row_query_start = row_query_start,
            .row_kv_len = row_kv_len,
            .token_ids = token_ids,
            .positions = positions,
            .delta_slot = delta_slot,
            .delta_epoch = delta_epoch,
            .delta_index = delta_index,
            .delta_page = delta_page,
            .copy_source = copy_source,
            .copy_target = copy_target,
            .store_transfer = store_transfer,
            .store_source = store_source,
            .store_target = store_target,
            .load_transfer = load_transfer,
            .load_source = load_source,
            .load_target = load_target};
  }

  int num_deltas(const PlanSummary& plan, int group) const noexcept {
    return plan.num_deltas[static_cast<std::size_t>(group)];
  }
  std::size_t delta(int group, int i) const noexcept {
    return static_cast<std::size_t>(group * capacity + i);
  }

  int num_groups;
  int capacity;  // deltas per group
  std::vector<RequestId> row_request;
  std::vector<std::int32_t> row_slot, row_query_start, row_kv_len;
  std::vector<Epoch> row_epoch;
  std::vector<std::uint8_t> row_flags;
  std::vector<std::int32_t> token_ids, positions;
  std::vector<std::int32_t> delta_slot, delta_index, delta_page;
  std::vector<Epoch> delta_epoch;
  std::vector<std::int32_t> copy_source, copy_target;
  std::vector<std::uint64_t> store_transfer, load_transfer;
  std::vector<std::int32_t> store_source, store_target, load_source, load_target;
};

// One rank: a scheduler and the arrays that it plans into.
struct Rank {
  explicit Rank(const Config& config) : scheduler(config), arrays(config, scheduler.layout()) {}

  PlanSummary plan(std::int64_t now_ms) { return scheduler.plan(now_ms, arrays.view()); }

  Scheduler scheduler;
  Arrays arrays;
};

}  // namespace tokenspeed::fuzz
