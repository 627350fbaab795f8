// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/reservation.h"
#include "cache/transfers.h"
#include "fsm/results.h"
#include "schedule/request.h"
#include "types.h"

namespace tokenspeed {

enum RowFlag : std::uint8_t {
  EMITS = 1,
  DECODE = 2,
  NEW_TENANT = 4,
};

// Why a plan has no rows.
enum class Blocked : std::uint8_t { NO = 0, IDLE = 1, COMMIT = 2, TRANSFER = 3, PAGES = 4 };

// The arrays that a plan fills. Borrowed. Those of deltas hold one row per group.
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
  std::span<PageId> copy_source;
  std::span<PageId> copy_target;
  std::span<TransferId> store_transfer;
  std::span<PageId> store_source;
  std::span<PageId> store_target;
  std::span<TransferId> load_transfer;
  std::span<PageId> load_source;
  std::span<PageId> load_target;
};

struct PlanSummary {
  std::int64_t step = 0;
  int num_rows = 0;
  int num_decode_rows = 0;
  int num_tokens = 0;
  int num_emits = 0;
  int num_new_tenants = 0;
  int max_query_len = 0;
  int max_kv_len = 0;
  int num_groups = 0;
  std::array<int, kMaxGroups> num_deltas{};
  int num_copies = 0;
  int num_stores = 0;
  int num_loads = 0;
  Blocked blocked = Blocked::NO;
  std::uint64_t digest = 0;
};

// Writes one step's rows straight into the caller's arrays, keeps a record of each row for its
// commit, and digests everything that it writes.
class Batch final : public MoveSink {
 public:
  Batch(std::int64_t step, int num_groups, const PlanView& out,
        std::vector<fsm::RowRecord>& records) noexcept;

  std::int64_t step() const noexcept { return summary_.step; }
  int rows_left() const noexcept {
    return static_cast<int>(out_.row_slot.size()) - summary_.num_rows;
  }
  int tokens_left() const noexcept {
    return static_cast<int>(out_.token_ids.size()) - summary_.num_tokens;
  }
  int deltas_left(int group) const noexcept {
    return delta_capacity_ - summary_.num_deltas[static_cast<std::size_t>(group)];
  }
  int copies_left() const noexcept {
    return static_cast<int>(out_.copy_source.size()) - summary_.num_copies;
  }
  int moves_left(Tier to) const noexcept override;
  int num_decode_rows() const noexcept { return summary_.num_decode_rows; }

  // `count` - 1 of the query tokens are drafts.
  void add_decode_row(Request& request, const Slot& slot, int count) noexcept;
  void add_prefill_row(Request& request, const Slot& slot, int count) noexcept;
  void add_delta(int group, const Slot& slot, int index, PageId page) noexcept;
  void add_copy(PageId source, PageId target) noexcept;
  void add_move(Tier to, TransferId id, PageId source, PageId target) noexcept override;

  PlanSummary finish() const noexcept { return summary_; }

 private:
  void add_row(Request& request, const Slot& slot, int count, int outputs,
               std::uint8_t flags) noexcept;
  void digest(std::uint64_t word) noexcept;
  void digest_tokens(std::span<const TokenId> tokens) noexcept;

  const PlanView& out_;
  int delta_capacity_;  // per group
  std::vector<fsm::RowRecord>& records_;
  PlanSummary summary_;
};

}  // namespace tokenspeed
