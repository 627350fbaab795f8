// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "fsm/actions.h"

#include <cassert>
#include <span>

namespace tokenspeed::fsm {
namespace {

// A recurrent state that stands at the end of the published blocks, and that no row moved on, is
// that block's checkpoint.
void keep_live_state(const Request& request, Reservation& reservation, PrefixTree& tree) noexcept {
  const Layout& layout = tree.layout();
  const int depth = reservation.published();
  if (depth > 0 && request.planned == depth * layout.block_size()) {
    int entry = layout.part(layout.state_part()).first_entry;
    for (Page& live : reservation.live()) {
      tree.attach(Tier::DEVICE, reservation.pin().tip(), entry++, std::move(live));
    }
  }
  tree.hold_checkpoint(reservation.pin());
}

// What was computed of the last, unfinished block.
void keep_tail(const Request& request, Reservation& reservation, PrefixTree& tree) noexcept {
  const int start = reservation.published() * tree.layout().block_size();
  const int fill = request.computed - start;
  if (fill < 1 || fill >= tree.layout().block_size()) {
    return;
  }
  const std::span<const TokenId> tokens(request.tokens.data() + start,
                                        static_cast<std::size_t>(fill));
  const std::span<Page> pages = tree.staging();
  reservation.take_tail(pages, fill);
  const NodeId tail = tree.publish_tail(reservation.pin(), request.ns, tokens, pages);
  for (Page& page : pages) {
    page.reset();
  }
  if (tail != kNoNode) {
    tree.extend(reservation.pin(), tail);
  }
}

bool ended_well(Finish finish) noexcept {
  return finish == Finish::STOP || finish == Finish::LENGTH;
}

}  // namespace

void start_run(Request& request, int cached) noexcept {
  request.prefill_end = static_cast<int>(request.tokens.size());
  request.computed = cached;
  request.planned = cached;
  request.has_row = false;
  request.wait = {};
  request.turn.misfit_at = 0;
  request.loading_tokens = 0;
  request.admissions += 1;
}

// Of the first run only: what a retracted request finds again is no hit.
void count_hits(Request& request, Effects& fx) noexcept {
  if (request.is_counted) {
    return;
  }
  request.is_counted = true;
  request.cached_tokens = request.computed;
  fx.counters.prompt_tokens += request.prompt_len;
  fx.counters.cached_tokens += request.computed;
  fx.counters.host_cached_tokens += request.loading_tokens;
}

void cancel_run(Request& request) noexcept {
  assert(request.in_flight == 0);
  request.computed = 0;
  request.planned = 0;
  request.planned_outputs = request.outputs();
}

void end_run(Request& request, Reservation&& reservation, Finish finish, Effects& fx) noexcept {
  assert(request.in_flight == 0);
  Reservation ending = std::move(reservation);
  if (PrefixTree* tree = fx.cache.tree()) {
    ending.drop_source();
    const int stored = ending.stored();
    const int blocks = ending.published();
    if (tree->layout().has_state()) {
      keep_live_state(request, ending, *tree);
    } else if (finish != Finish::FAILED && !request.unpublishable) {
      keep_tail(request, ending, *tree);
    }
    KeptSession session;
    if (ended_well(finish) && blocks > 0) {
      const PageKey leaf = request.keys[static_cast<std::size_t>(blocks) - 1];
      session = fx.cache.end_session({request.ns, leaf, blocks * tree->layout().width(),
                                      fx.cache.now_ms(), request.history});
    }
    fx.transfers.retire({std::move(ending.pin()), stored, session, finish == Finish::NONE});
    if (finish == Finish::NONE) {  // prompt and answer so far are its prompt now
      fx.hasher.extend(request.ns, request.tokens, request.keys);
    }
  }
  cancel_run(request);
}

// Publishes every block that this commit filled. All tokens below kv_len are committed ones: a
// row's input was the output of a row that was committed before it.
void advance_kv(Request& request, Reservation& reservation, int kv_len, Effects& fx) noexcept {
  assert(kv_len <= static_cast<int>(request.tokens.size()) && kv_len > request.computed);
  request.computed = kv_len;
  reservation.drop_source();
  reservation.release_checkpoint();
  if (PrefixTree* tree = fx.cache.tree()) {
    const int block_size = tree->layout().block_size();
    const std::span<const TokenId> known(request.tokens.data(), static_cast<std::size_t>(kv_len));
    fx.hasher.extend(request.ns, known, request.keys);
    while (!request.unpublishable && (reservation.published() + 1) * block_size <= kv_len) {
      const BlockContent block = request.prefix().block(reservation.published(), block_size);
      request.unpublishable = !reservation.publish_next(*tree, block);
    }
  }
  reservation.reclaim(kv_len);
}

void append_tokens(Request& request, std::span<const TokenId> tokens, Finish finish,
                   Effects& fx) noexcept {
  assert(request.tokens.size() + tokens.size() <= request.tokens.capacity());
  request.tokens.insert(request.tokens.end(), tokens.begin(), tokens.end());
  fx.counters.output_tokens += static_cast<std::int64_t>(tokens.size());
  const TokenId stop = finish == Finish::STOP ? tokens.back() : -1;
  fx.updates.add({request.id, finish, stop, request.cached_tokens}, tokens);
}

void report_end(const Request& request, Finish finish, Effects& fx) noexcept {
  fx.updates.add({request.id, finish, -1, request.cached_tokens}, {});
}

}  // namespace tokenspeed::fsm
