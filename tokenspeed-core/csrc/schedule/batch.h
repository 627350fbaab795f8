// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/reservation.h"
#include "fsm/results.h"
#include "schedule/request.h"
#include "types.h"

namespace tokenspeed {

enum RowFlag : std::uint8_t {
  EMITS = 1,
  DECODE = 2,
  NEW_TENANT = 4,
};

// The arrays that a plan fills. Borrowed; group 0's deltas only, as there is one group.
struct PlanView {
  std::span<RequestId> row_request;
  std::span<SlotId> row_slot;
  std::span<Epoch> row_epoch;
  std::span<std::uint8_t> row_flags;
  std::span<std::int32_t> row_query_start;
  std::span<std::int32_t> row_kv_len;
  std::span<TokenId> token_ids;
  std::span<std::int32_t> positions;
  std::span<SlotId> delta_slot;
  std::span<Epoch> delta_epoch;
  std::span<std::int32_t> delta_index;
  std::span<PageId> delta_page;
};

struct PlanSummary {
  std::int64_t step = 0;
  int num_rows = 0;
  int num_decode_rows = 0;
  int num_tokens = 0;
  int num_emits = 0;
  int num_deltas = 0;
  std::uint64_t digest = 0;
};

// Writes one step's rows straight into the caller's arrays, keeps a record of each row for its
// commit, and digests everything that it writes.
class Batch {
 public:
  Batch(std::int64_t step, const PlanView& out, std::vector<fsm::RowRecord>& records) noexcept;

  int tokens_left() const noexcept {
    return static_cast<int>(out_.token_ids.size()) - summary_.num_tokens;
  }
  int deltas_left() const noexcept {
    return static_cast<int>(out_.delta_slot.size()) - summary_.num_deltas;
  }
  int num_decode_rows() const noexcept { return summary_.num_decode_rows; }

  void add_decode_row(Request& request, const Slot& slot) noexcept;
  void add_prefill_row(Request& request, const Slot& slot, int count, bool first) noexcept;
  void add_delta(const Slot& slot, int index, PageId page) noexcept;

  // The whole table of a request that was just admitted.
  void add_table(const Reservation& reservation, const PrefixTree* tree) noexcept;

  PlanSummary finish() const noexcept { return summary_; }

 private:
  void add_row(Request& request, const Slot& slot, int count, std::uint8_t flags) noexcept;
  void digest(std::uint64_t word) noexcept;

  const PlanView& out_;
  std::vector<fsm::RowRecord>& records_;
  PlanSummary summary_;
};

}  // namespace tokenspeed
