// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/admission.h"

#include <algorithm>
#include <array>
#include <utility>

#include "schedule/capacity.h"
#include "schedule/provider.h"

namespace tokenspeed {
namespace {

// How many of the queue are compared; a look at one that is known not to fit costs O(1).
constexpr std::size_t kWindow = 8;

}  // namespace

void Admission::run(Batch& batch, int budget) {
  while (budget > 0 && slots_.free() > 0 && batch.rows_left() > 0) {
    Request* request = choose(batch);
    if (request == nullptr) {
      return;
    }
    admit(batch, *request);
    if (fsm::is_running(request->state)) {
      budget -= rows_.add_prefill(batch, *request, budget);
    }
  }
}

bool Admission::same_class(const Request& first, const Request& other) const noexcept {
  const std::int64_t later = other.turn.rank - first.turn.rank;
  return later == 0 || later < config_.aging_ms;
}

// Who comes in next; its match is in match_. Null when nobody does now.
Request* Admission::choose(const Batch& batch) {
  bool look_again = true;
  Request* chosen = nullptr;
  while (chosen == nullptr && std::exchange(look_again, false)) {
    chosen = choose_from_window(batch, look_again);
  }
  return chosen;
}

// `look_again`: one of them waits for another's block from now on, so the window has moved.
Request* Admission::choose_from_window(const Batch& batch, bool& look_again) {
  std::array<Request*, kWindow> candidates{};
  std::size_t count = 0;
  for (Request* it = roster_.queue().front(); it != nullptr && count < kWindow; it = it->next) {
    if (count > 0 && !same_class(*candidates[0], *it)) {
      break;
    }
    if (!waits(*it, batch.step())) {
      candidates[count++] = it;
    }
  }
  Request* first = candidates[0];
  if (count > 1 && first->turn.bypassed >= config_.max_bypass) {
    count = 1;
  }
  if (count > 1 && cache_.tree() != nullptr) {
    std::stable_sort(candidates.begin(), candidates.begin() + count,
                     [this](Request* a, Request* b) { return cached_hint(*a) > cached_hint(*b); });
  }
  for (std::size_t i = 0; i < count; ++i) {
    Request* request = candidates[i];
    if (!can_come_in(*request, batch.step())) {
      look_again |= request->wait.provider != nullptr;
      continue;
    }
    if (!fits_step(batch, *request)) {
      return nullptr;
    }
    if (request != first) {
      first->turn.bypassed += 1;
      counters_.bypasses += 1;
    }
    return request;
  }
  return nullptr;
}

// What was cached of it when it came near the front. An estimate: admission looks again.
int Admission::cached_hint(Request& request) {
  if (request.turn.cached_hint < 0) {
    match(request);
    request.turn.cached_hint = match_.blocks;
  }
  return request.turn.cached_hint;
}

bool Admission::can_come_in(Request& request, std::int64_t step) {
  if (request.turn.misfit_at == version()) {
    return false;
  }
  match(request);
  if (starts_to_wait(request, step)) {
    return false;
  }
  if (match_.loading || !fits_somehow(request)) {
    request.turn.misfit_at = version();
    return false;
  }
  return true;
}

// At least the last prompt token is computed, for its logits.
void Admission::match(const Request& request) {
  match_.clear();
  if (const PrefixTree* tree = cache_.tree()) {
    tree->match(request.prefix(), static_cast<int>(request.tokens.size()) - 1, match_);
  }
}

// Pages that the request takes at once, or soon where its sliding windows fill.
int Admission::pages_needed(const Request& request) const noexcept {
  const int length = static_cast<int>(request.tokens.size());
  int pages = match_.load_pages;
  for (const Group& group : layout_.groups()) {
    const int rest = ceil_div(length, group.page_size) - match_.blocks * group.entries;
    pages += group.kind == Kind::STATE
                 ? 1
                 : std::min(rest, peak_pages(group, length, config_.max_step_tokens));
  }
  return pages;
}

// Matched pages are about to be pinned, so they do not count as available. One page per running
// request stays in reserve, so that the newcomer is not the next victim at once; with nothing
// running there is no such reserve.
bool Admission::fits(const Request& request) const noexcept {
  const int available = cache_.available_pages() - match_.reclaimable;
  const int reserve = static_cast<int>(roster_.running().size());
  return pages_needed(request) + reserve <= available;
}

// With nothing running, what passed submit fits, if need be without the help of cached pages,
// which a hit would pin beside its own.
bool Admission::fits_somehow(const Request& request) {
  if (fits(request)) {
    return true;
  }
  if (!roster_.running().empty() || roster_.leaving() > 0) {
    return false;
  }
  match_.clear();
  return fits(request);
}

// Its page table, its copies and its moves from the host tier: else it comes in with the next
// step.
bool Admission::fits_step(const Batch& batch, const Request& request) const noexcept {
  const int length = static_cast<int>(request.tokens.size());
  for (int g = 0; g < layout_.num_groups(); ++g) {
    const Group& group = layout_.group(g);
    const int tokens = group.kind == Kind::FULL ? length : match_.tokens(layout_.block_size());
    const int entries = group.kind == Kind::STATE ? 0 : ceil_div(tokens, group.page_size);
    if (batch.deltas_left(g) <= entries) {
      return false;
    }
  }
  const int copies = cache_.tree() != nullptr ? layout_.width() : 0;
  return batch.copies_left() >= copies &&
         batch.moves_left(Tier::DEVICE) >= match_.load_pages;
}

void Admission::admit(Batch& batch, Request& request) {
  const int cached = match_.tokens(layout_.block_size());
  Reservation reservation = reserve(request);
  if (match_.load_pages == 0) {
    lifecycle_.send(request, fsm::Admit{std::move(reservation), cached});
    return;
  }
  LoadTicket ticket = transfers_.load(
      reservation.pin(), match_.blocks - match_.load_blocks, request, request.arrival, batch);
  const int from_host = match_.load_blocks * layout_.block_size();
  lifecycle_.send(request, fsm::Load{std::move(reservation), cached, from_host, std::move(ticket)});
}

// `fits` said yes, so every page is there. Should memory for a table run out here, the holders
// give everything back.
Reservation Admission::reserve(Request& request) {
  TreePin pin;
  if (PrefixTree* tree = cache_.tree()) {
    const int deepest = static_cast<int>(match_.path.size());
    request.promoted = deepest > match_.blocks ? deepest * layout_.block_size() : 0;
    pin = tree->pin(match_, request.final_kv_len() / layout_.block_size() + 1);
    if (request.admissions == 0) {  // once its pages are pinned, for this lets go of them
      request.history = cache_.continue_session(request.ns, request.keys, request.submitted_ms);
    }
  }
  Reservation reservation(slots_.take(), std::move(pin), layout_, request.final_kv_len());
  if (cache_.has_host_tier()) {
    reservation.set_stored(transfers_.stored_prefix(reservation.pin()));
  }
  if (match_.partial > 0) {
    take_source(reservation);
  }
  take_pages(request, reservation);
  return reservation;
}

// The block that matches in part: its pages are taken over when nobody else has a use for them,
// and copied otherwise.
void Admission::take_source(Reservation& reservation) {
  PrefixTree& tree = *cache_.tree();
  const NodeId source = match_.source;
  const std::span<Page> pages = tree.staging();
  if (tree.fill(source) == match_.partial && tree.adopt(source, pages)) {
    counters_.adoptions += 1;
  } else {
    reservation.keep_source(tree.pin_node(source), match_.partial);
  }
}

// All pages of the prompt in full groups; in a sliding group those of the block that matches in
// part, as its others come chunk by chunk; a page for each state.
void Admission::take_pages(const Request& request, Reservation& reservation) {
  const int length = static_cast<int>(request.tokens.size());
  const int start = match_.blocks * layout_.block_size();
  const std::span<Page> adopted =
      cache_.tree() != nullptr ? cache_.tree()->staging() : std::span<Page>{};
  std::size_t state = 0;
  for (int g = 0; g < layout_.num_groups(); ++g) {
    const Group& group = layout_.group(g);
    if (group.kind == Kind::STATE) {
      reservation.live()[state++] = cache_.take_page();
      continue;
    }
    const int end = group.kind == Kind::FULL ? length : start + match_.partial;
    const int read = Layout::first_read(group.kind, group.window, start + match_.partial);
    for (int j = 0; start + j * group.page_size < end; ++j) {
      Page page;
      if (j < group.entries && !adopted.empty()) {
        page = std::move(adopted[static_cast<std::size_t>(group.first_entry + j)]);
      }
      const bool passed = start + (j + 1) * group.page_size <= read;
      if (!page && !passed) {
        page = cache_.take_page();
      }
      reservation.append(g, std::move(page));
    }
  }
}

// A look at a waiting request costs O(1): its prefix is matched again only when its provider has
// nothing more to give.
bool Admission::waits(Request& request, std::int64_t step) noexcept {
  return request.wait.provider != nullptr &&
         keep_waiting(request, layout_.block_size(), config_.max_wait_steps, step);
}

bool Admission::starts_to_wait(Request& request, std::int64_t step) noexcept {
  if (cache_.tree() == nullptr || request.wait.given_up || config_.max_wait_steps == 0) {
    return false;
  }
  for (const Request* provider : roster_.running()) {
    if (computes_block(*provider, request, match_.blocks, layout_.block_size())) {
      request.wait = wait_for(*provider, match_.blocks, step);
      counters_.prefix_waits += 1;
      return true;
    }
  }
  return false;
}

}  // namespace tokenspeed
