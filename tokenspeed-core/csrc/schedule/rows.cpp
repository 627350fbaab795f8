// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/rows.h"

#include <algorithm>
#include <utility>

namespace tokenspeed {

bool Rows::add_decode(Batch& batch, Request& request, int drafts, int spare) {
  const int upto = request.planned + 1 + drafts;
  int covered = extend(batch, request, request.planned + 1);
  if (covered <= request.planned) {
    return false;
  }
  Reservation& reservation = *fsm::reservation_of(request.state);
  covered = extend_freely(reservation, upto, spare);
  if (!tell(batch, reservation)) {
    return false;
  }
  freeze_state(batch, request, reservation);
  batch.add_decode_row(request, reservation.slot(), std::min(covered, upto) - request.planned);
  return true;
}

int Rows::add_prefill(Batch& batch, Request& request, int budget) {
  const int covered = extend(batch, request, chunk_end(request, budget));
  if (covered <= request.planned) {
    return 0;
  }
  Reservation& reservation = *fsm::reservation_of(request.state);
  const int copies = request.has_row || cache_.tree() == nullptr ? 0 : cache_.layout().width();
  if (batch.copies_left() < copies || !tell(batch, reservation)) {
    return 0;
  }
  if (!request.has_row) {
    introduce(batch, reservation);
  }
  freeze_state(batch, request, reservation);
  const int count = covered - request.planned;
  batch.add_prefill_row(request, reservation.slot(), count);
  return count;
}

// The page table entries that the device does not have yet. They go with a row and not before:
// the row is what keeps the pages until they have been used.
bool Rows::tell(Batch& batch, Reservation& reservation) noexcept {
  const Layout& layout = cache_.layout();
  for (int g = 0; g < layout.num_groups(); ++g) {
    if (batch.deltas_left(g) < reservation.size(g) - reservation.told(g) + 1) {
      return false;
    }
  }
  for (int g = 0; g < layout.num_groups(); ++g) {
    for (int index = reservation.told(g); index < reservation.size(g); ++index) {
      const PageId page = reservation.entry(cache_.tree(), g, index);
      if (page != kNullPage) {
        batch.add_delta(g, reservation.slot(), index, page);
      }
    }
    reservation.set_told(g);
  }
  return true;
}

// A new tenant's state pages, and the copies that its first row needs.
void Rows::introduce(Batch& batch, Reservation& reservation) noexcept {
  const Layout& layout = cache_.layout();
  for (int g = 0; g < layout.num_groups(); ++g) {
    if (layout.group(g).kind == Kind::STATE) {
      const auto at = static_cast<std::size_t>(layout.state_index(g));
      batch.add_delta(g, reservation.slot(), 0, reservation.live()[at].id());
    }
  }
  if (const PrefixTree* tree = cache_.tree()) {
    reservation.for_each_copy(
        *tree, [&](PageId source, PageId target) { batch.add_copy(source, target); });
  }
}

// With recurrent state, a chunk ends where a checkpoint is worth having: where the resident prefix
// ended, at the last block end of the prompt, and else at a block end if one is near enough.
int Rows::chunk_end(const Request& request, int budget) const noexcept {
  int end = std::min(request.planned + budget, request.prefill_end);
  if (!cache_.layout().has_state() || cache_.tree() == nullptr) {
    return end;
  }
  const int block_size = cache_.layout().block_size();
  const int last = request.prefill_end / block_size * block_size;
  for (const int boundary : {request.promoted, last}) {
    if (request.planned < boundary && boundary < end) {
      end = boundary;
    }
  }
  const int aligned = end / block_size * block_size;
  return end < request.prefill_end && aligned > request.planned ? aligned : end;
}

// Makes sure that every group has the pages of the tokens below `upto`; how far it came.
int Rows::extend(Batch& batch, Request& request, int upto) {
  const Layout& layout = cache_.layout();
  int covered = upto;
  for (int g = 0; g < layout.num_groups(); ++g) {
    const Group& group = layout.group(g);
    if (group.kind == Kind::STATE) {
      continue;
    }
    Reservation* reservation = fsm::reservation_of(request.state);
    while (reservation->size(g) * group.page_size < covered) {
      Page page = growth_.take_page_for(request, batch);
      if (!page) {
        if (!fsm::is_running(request.state)) {
          return 0;  // it was the victim itself
        }
        covered = reservation->size(g) * group.page_size;
        break;
      }
      reservation->append(g, std::move(page));
    }
  }
  return covered;
}

// The same for guesses, at nobody's cost: from pages that no request owns, nor may need now.
int Rows::extend_freely(Reservation& reservation, int upto, int spare) {
  const Layout& layout = cache_.layout();
  int covered = upto;
  for (int g = 0; g < layout.num_groups(); ++g) {
    const Group& group = layout.group(g);
    if (group.kind == Kind::STATE) {
      continue;
    }
    while (reservation.size(g) * group.page_size < covered) {
      Page page = cache_.available_pages() > spare ? cache_.take_page() : Page();
      if (!page) {
        covered = reservation.size(g) * group.page_size;
        break;
      }
      reservation.append(g, std::move(page));
    }
  }
  return covered;
}

// Copy on write: where a row moves on from the end of a block, the state as it is there becomes
// the block's checkpoint, and the row goes on with a copy. Without a page to spare it does not.
void Rows::freeze_state(Batch& batch, const Request& request, Reservation& reservation) noexcept {
  const Layout& layout = cache_.layout();
  PrefixTree* tree = cache_.tree();
  const int at = request.planned;
  const bool wanted = tree != nullptr && layout.has_state() && !request.unpublishable &&
                      at % layout.block_size() == 0 &&
                      at > reservation.matched() * layout.block_size();
  if (!wanted || reservation.has_frozen() || batch.copies_left() < layout.width()) {
    return;
  }
  std::vector<Page>& live = reservation.live();
  if (cache_.available_pages() < static_cast<int>(live.size())) {
    return;
  }
  std::size_t i = 0;
  for (int g = 0; g < layout.num_groups(); ++g) {
    if (layout.group(g).kind != Kind::STATE) {
      continue;
    }
    Page fresh = cache_.take_page();
    batch.add_copy(live[i].id(), fresh.id());
    batch.add_delta(g, reservation.slot(), 0, fresh.id());
    reservation.frozen()[i] = std::exchange(live[i], std::move(fresh));
    ++i;
  }
  reservation.freeze(*tree, at);
}

}  // namespace tokenspeed
