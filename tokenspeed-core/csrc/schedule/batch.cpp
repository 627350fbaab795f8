// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/batch.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "cache/mix.h"

namespace tokenspeed {
namespace {

constexpr std::uint64_t word(std::int32_t high, std::int32_t low) noexcept {
  return std::uint64_t{static_cast<std::uint32_t>(high)} << 32 | static_cast<std::uint32_t>(low);
}

}  // namespace

Batch::Batch(std::int64_t step, const PlanView& out, std::vector<fsm::RowRecord>& records) noexcept
    : out_(out), records_(records) {
  summary_.step = step;
  out_.row_query_start[0] = 0;
  digest(static_cast<std::uint64_t>(step));
}

void Batch::add_decode_row(Request& request, const Slot& slot) noexcept {
  const auto at = static_cast<std::size_t>(summary_.num_tokens);
  out_.token_ids[at] = 0;  // the token is on the device, and may not even exist yet
  out_.positions[at] = request.planned;
  summary_.num_decode_rows += 1;
  add_row(request, slot, 1, EMITS | DECODE);
}

void Batch::add_prefill_row(Request& request, const Slot& slot, int count, bool first) noexcept {
  const auto at = static_cast<std::size_t>(summary_.num_tokens);
  const auto n = static_cast<std::size_t>(count);
  const auto from = request.tokens.begin() + request.planned;
  std::copy(from, from + count, out_.token_ids.begin() + static_cast<std::ptrdiff_t>(at));
  const auto positions = out_.positions.subspan(at, n);
  std::iota(positions.begin(), positions.end(), request.planned);
  for (const TokenId token : out_.token_ids.subspan(at, n)) {
    digest(static_cast<std::uint32_t>(token));
  }
  const bool last = request.planned + count == request.prefill_end;
  add_row(request, slot, count,
          static_cast<std::uint8_t>((last ? EMITS : 0) | (first ? NEW_TENANT : 0)));
}

void Batch::add_row(Request& request, const Slot& slot, int count, std::uint8_t flags) noexcept {
  assert(count >= 1 && count <= tokens_left());
  const auto row = static_cast<std::size_t>(summary_.num_rows);
  const bool emits = (flags & EMITS) != 0;
  request.planned += count;
  request.planned_outputs += emits ? 1 : 0;
  request.in_flight += 1;
  summary_.num_rows += 1;
  summary_.num_tokens += count;
  summary_.num_emits += emits ? 1 : 0;
  out_.row_request[row] = request.id;
  out_.row_slot[row] = slot.id();
  out_.row_epoch[row] = slot.epoch();
  out_.row_flags[row] = flags;
  out_.row_query_start[row + 1] = summary_.num_tokens;
  out_.row_kv_len[row] = request.planned;
  records_.push_back({&request, request.planned, emits, (flags & DECODE) != 0});
  digest(request.id);
  digest(word(slot.id(), static_cast<std::int32_t>(slot.epoch())));
  digest(word(request.planned, count << 3 | flags));
}

void Batch::add_delta(const Slot& slot, int index, PageId page) noexcept {
  assert(deltas_left() > 0);
  const auto at = static_cast<std::size_t>(summary_.num_deltas);
  out_.delta_slot[at] = slot.id();
  out_.delta_epoch[at] = slot.epoch();
  out_.delta_index[at] = index;
  out_.delta_page[at] = page;
  summary_.num_deltas += 1;
  digest(word(slot.id(), static_cast<std::int32_t>(slot.epoch())));
  digest(word(index, page));
}

void Batch::add_table(const Reservation& reservation, const PrefixTree* tree) noexcept {
  NodeId node = reservation.pin().tip();
  for (int index = reservation.matched() - 1; index >= 0; --index) {
    add_delta(reservation.slot(), index, tree->page_of(node));
    node = tree->parent_of(node);
  }
  for (int index = reservation.matched(); index < reservation.size(); ++index) {
    add_delta(reservation.slot(), index, reservation.page_at(index));
  }
}

void Batch::digest(std::uint64_t word) noexcept { summary_.digest = mix(summary_.digest, word); }

}  // namespace tokenspeed
