// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/batch.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "cache/mix.h"

namespace tokenspeed {
namespace {

constexpr std::uint64_t word(std::int32_t high, std::int32_t low) noexcept {
  return std::uint64_t{static_cast<std::uint32_t>(high)} << 32 | static_cast<std::uint32_t>(low);
}

}  // namespace

Batch::Batch(std::int64_t step, int num_groups, const PlanView& out,
             std::vector<fsm::RowRecord>& records) noexcept
    : out_(out),
      delta_capacity_(static_cast<int>(out.delta_slot.size()) / num_groups),
      records_(records) {
  summary_.step = step;
  summary_.num_groups = num_groups;
  out_.row_query_start[0] = 0;
  digest(static_cast<std::uint64_t>(step));
}

int Batch::moves_left(Tier to) const noexcept {
  return to == Tier::HOST ? static_cast<int>(out_.store_source.size()) - summary_.num_stores
                          : static_cast<int>(out_.load_source.size()) - summary_.num_loads;
}

void Batch::add_decode_row(Request& request, const Slot& slot, int count) noexcept {
  const auto at = static_cast<std::size_t>(summary_.num_tokens);
  const auto n = static_cast<std::size_t>(count);
  const auto ids = out_.token_ids.subspan(at, n);
  std::fill(ids.begin(), ids.end(), 0);  // they are on the device, and may not even exist yet
  if (request.next_input_known()) {
    ids[0] = request.tokens.back();
    if (request.drafts_step == summary_.step) {
      std::copy_n(request.drafts.begin(), n - 1, ids.begin() + 1);
      digest_tokens(ids.subspan(1));
    }
  }
  const auto positions = out_.positions.subspan(at, n);
  std::iota(positions.begin(), positions.end(), request.planned);
  summary_.num_decode_rows += 1;
  add_row(request, slot, count, count, EMITS | DECODE);
}

void Batch::add_prefill_row(Request& request, const Slot& slot, int count) noexcept {
  const auto at = static_cast<std::size_t>(summary_.num_tokens);
  const auto n = static_cast<std::size_t>(count);
  const auto from = request.tokens.begin() + request.planned;
  std::copy(from, from + count, out_.token_ids.begin() + static_cast<std::ptrdiff_t>(at));
  const auto positions = out_.positions.subspan(at, n);
  std::iota(positions.begin(), positions.end(), request.planned);
  digest_tokens(out_.token_ids.subspan(at, n));
  const bool last = request.planned + count == request.prefill_end;
  const bool first = !std::exchange(request.has_row, true);
  add_row(request, slot, count, last ? 1 : 0,
          static_cast<std::uint8_t>((last ? EMITS : 0) | (first ? NEW_TENANT : 0)));
}

void Batch::add_row(Request& request, const Slot& slot, int count, int outputs,
                    std::uint8_t flags) noexcept {
  assert(count >= 1 && count <= tokens_left());
  const auto row = static_cast<std::size_t>(summary_.num_rows);
  const bool emits = (flags & EMITS) != 0;
  request.planned += count;
  request.planned_outputs += outputs;
  request.in_flight += 1;
  summary_.num_rows += 1;
  summary_.num_tokens += count;
  summary_.num_emits += (flags & DECODE) != 0 ? count : emits ? 1 : 0;
  summary_.num_new_tenants += (flags & NEW_TENANT) != 0 ? 1 : 0;
  summary_.max_query_len = std::max(summary_.max_query_len, count);
  summary_.max_kv_len = std::max(summary_.max_kv_len, request.planned);
  out_.row_request[row] = request.id;
  out_.row_slot[row] = slot.id();
  out_.row_epoch[row] = slot.epoch();
  out_.row_flags[row] = flags;
  out_.row_query_start[row + 1] = summary_.num_tokens;
  out_.row_kv_len[row] = request.planned;
  records_.push_back({&request, count, emits, (flags & DECODE) != 0});
  digest(request.id);
  digest(word(slot.id(), static_cast<std::int32_t>(slot.epoch())));
  digest(word(request.planned, count << 3 | flags));
}

void Batch::add_delta(int group, const Slot& slot, int index, PageId page) noexcept {
  assert(deltas_left(group) > 0);
  int& count = summary_.num_deltas[static_cast<std::size_t>(group)];
  const auto at = static_cast<std::size_t>(group * delta_capacity_ + count);
  out_.delta_slot[at] = slot.id();
  out_.delta_epoch[at] = slot.epoch();
  out_.delta_index[at] = index;
  out_.delta_page[at] = page;
  count += 1;
  digest(word(slot.id(), group));
  digest(word(index, page));
}

void Batch::add_copy(PageId source, PageId target) noexcept {
  assert(copies_left() > 0);
  const auto at = static_cast<std::size_t>(summary_.num_copies++);
  out_.copy_source[at] = source;
  out_.copy_target[at] = target;
  digest(word(source, target));
}

void Batch::add_move(Tier to, TransferId id, PageId source, PageId target) noexcept {
  assert(moves_left(to) > 0);
  const bool store = to == Tier::HOST;
  const auto at = static_cast<std::size_t>(store ? summary_.num_stores++ : summary_.num_loads++);
  (store ? out_.store_transfer : out_.load_transfer)[at] = id;
  (store ? out_.store_source : out_.load_source)[at] = source;
  (store ? out_.store_target : out_.load_target)[at] = target;
  digest(id);
  digest(word(source, target));
}

// Two tokens make one word.
void Batch::digest_tokens(std::span<const TokenId> tokens) noexcept {
  std::size_t i = 0;
  for (; i + 1 < tokens.size(); i += 2) {
    digest(word(tokens[i + 1], tokens[i]));
  }
  if (i < tokens.size()) {
    digest(static_cast<std::uint32_t>(tokens[i]));
  }
}

void Batch::digest(std::uint64_t word) noexcept { summary_.digest = mix(summary_.digest, word); }

}  // namespace tokenspeed
