// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/admission.h"

#include <algorithm>

#include "schedule/provider.h"

namespace tokenspeed {

void Admission::run(Batch& batch, int budget) {
  Request* next = nullptr;
  for (Request* it = roster_.queue().front(); it != nullptr && budget > 0; it = next) {
    Request& request = *it;
    next = request.next;  // admitting takes it out of the queue
    if (waits(request)) {
      continue;
    }
    if (resources_.free_slots() == 0 || is_known_not_to_fit(request)) {
      break;
    }
    const Match match = this->match(request);
    if (starts_to_wait(request, match)) {
      continue;
    }
    if (!fits(request, match)) {
      misfit_arrival_ = request.arrival;
      misfit_releases_ = roster_.releases();
      break;
    }
    if (match.pages + pages_to_compute(request, match) > batch.deltas_left()) {
      break;  // its table does not fit into this step's deltas: next step
    }
    lifecycle_.send(request, fsm::Admit{reserve(request, match)});
    const Reservation& reservation = *fsm::reservation_of(request.state);
    const int count = std::min(budget, request.prefill_end - request.planned);
    batch.add_table(reservation, resources_.tree());
    batch.add_prefill_row(request, reservation.slot(), count, true);
    budget -= count;
  }
}

// At least the last prompt token is computed, for its logits.
Match Admission::match(const Request& request) const noexcept {
  const PrefixTree* tree = resources_.tree();
  return tree == nullptr ? Match{} : tree->match(request.prefix(), last_page(request, page_size_));
}

int Admission::pages_to_compute(const Request& request, const Match& match) const noexcept {
  return ceil_div(static_cast<int>(request.tokens.size()), page_size_) - match.pages;
}

// Matched pages are about to be pinned, so they do not count as evictable. One page per running
// request stays in reserve, so that the newcomer is not the next victim at once; with nothing
// running there is no such reserve, and what passed submit fits.
bool Admission::fits(const Request& request, const Match& match) const noexcept {
  const int available = resources_.available_pages() - match.unpinned;
  const int reserve = static_cast<int>(roster_.running().size());
  return pages_to_compute(request, match) + reserve <= available;
}

// `fits` said yes, so every page is there. Should memory for the table run out here, the holders
// give everything back.
Reservation Admission::reserve(const Request& request, const Match& match) {
  PrefixTree* tree = resources_.tree();
  TreePin pin = tree == nullptr ? TreePin{} : tree->pin(match);
  const int capacity = ceil_div(request.final_kv_len(), page_size_);
  Reservation reservation(resources_.take_slot(), std::move(pin), capacity);
  for (int n = pages_to_compute(request, match); n > 0; --n) {
    reservation.append(resources_.take_page());
  }
  return reservation;
}

// A look at a waiting request costs O(1): its prefix is matched again only when its provider has
// nothing more to give.
bool Admission::waits(Request& request) noexcept {
  return request.wait.provider != nullptr && keep_waiting(request, page_size_, max_wait_steps_);
}

bool Admission::starts_to_wait(Request& request, const Match& match) noexcept {
  if (resources_.tree() == nullptr || request.wait.given_up || max_wait_steps_ == 0) {
    return false;
  }
  for (const Request* provider : roster_.running()) {
    if (computes_page(*provider, request, match.pages, page_size_)) {
      request.wait = wait_for(*provider, match.pages);
      counters_.prefix_waits += 1;
      return true;
    }
  }
  return false;
}

}  // namespace tokenspeed
