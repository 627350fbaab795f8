// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "cache/transfers.h"

#include <algorithm>
#include <utility>

namespace tokenspeed {

Transfers::Transfers(KvCache& cache, Counters& counters, int max_seqs)
    : cache_(cache), counters_(counters) {
  if (cache.has_host_tier()) {
    retired_.reserve(static_cast<std::size_t>(max_seqs) * 4);
  }
}

void Transfers::retire(Retired retired) noexcept {
  const bool to_store = cache_.has_host_tier() && retired.pin.depth() > 0 &&
                        retired_.size() < retired_.capacity();
  if (to_store) {
    retired_.push_back(std::move(retired));
  } else if (cache_.is_kept(retired.session)) {
    cache_.tree()->keep(retired.pin);
    cache_.keep(retired.session, std::move(retired.pin));
  }
}

void Transfers::store_retired(MoveSink& sink) {
  std::size_t done = 0;
  for (; done < retired_.size() && sink.moves_left(Tier::HOST) >= cache_.layout().width(); ++done) {
    Retired& retired = retired_[done];
    if (cache_.is_kept(retired.session)) {
      cache_.keep(retired.session, cache_.tree()->hold_path(retired.pin, HoldKind::KEEP));
    }
    Transfer transfer;
    transfer.detached = true;
    const int reached = collect(transfer, retired.pin, retired.stored, sink);
    counters_.retractions_to_host += retired.retracted && reached == retired.pin.depth() ? 1 : 0;
    if (!transfer.moves.empty()) {
      transfer.pin = std::move(retired.pin);
      launch(std::move(transfer), sink);
    }
  }
  retired_.erase(retired_.begin(), retired_.begin() + static_cast<std::ptrdiff_t>(done));
}

int Transfers::store(const TreePin& path, int from, MoveSink& sink) {
  Transfer transfer;
  const int reached = collect(transfer, path, from, sink);
  if (!transfer.moves.empty()) {
    transfer.pin = cache_.tree()->hold_path(path, HoldKind::PIN);
    launch(std::move(transfer), sink);
  }
  return reached;
}

int Transfers::stored_prefix(const TreePin& pin) const noexcept {
  const PrefixTree& tree = *cache_.tree();
  int blocks = 0;
  while (blocks < pin.depth() && (tree.resident(Tier::HOST, pin.node(blocks), 0) ||
                                  tree.is_storing(pin.node(blocks), 0))) {
    ++blocks;
  }
  return blocks;
}

// From the first block on, so that what the host tier has is a prefix.
int Transfers::collect(Transfer& transfer, const TreePin& path, int from, MoveSink& sink) {
  const PrefixTree& tree = *cache_.tree();
  const Layout& layout = cache_.layout();
  for (int i = from; i < path.depth(); ++i) {
    const NodeId node = path.node(i);
    for (int p = 0; p < layout.num_parts(); ++p) {
      const bool wanted = path.holds(p, i) && !tree.is_tail(node) &&
                          tree.resident(Tier::DEVICE, node, p) &&
                          !tree.resident(Tier::HOST, node, p) && !tree.is_storing(node, p);
      if (wanted && !collect_part(transfer, node, p, sink)) {
        return i;
      }
    }
  }
  return path.depth();
}

bool Transfers::collect_part(Transfer& transfer, NodeId node, int p, MoveSink& sink) {
  const Part& part = cache_.layout().part(p);
  const std::size_t before = transfer.moves.size();
  for (int entry = part.first_entry; entry < part.first_entry + part.entries; ++entry) {
    const PageId source = cache_.tree()->page_of(node, entry);
    if (source == kNullPage) {
      continue;
    }
    Page target;
    if (static_cast<int>(transfer.moves.size()) < sink.moves_left(Tier::HOST)) {
      target = cache_.take_host_page();
    }
    if (!target) {
      transfer.moves.resize(before);
      return false;
    }
    transfer.moves.push_back({node, entry, source, std::move(target)});
  }
  return true;
}

LoadTicket Transfers::load(const TreePin& pin, int first_block, Request& request,
                           std::uint64_t arrival, MoveSink& sink) {
  const PrefixTree& tree = *cache_.tree();
  const Layout& layout = cache_.layout();
  Transfer transfer;
  transfer.to = Tier::DEVICE;
  transfer.request = &request;
  transfer.arrival = arrival;
  transfer.pin = cache_.tree()->hold_path(pin, HoldKind::PIN);
  for (int i = first_block; i < pin.depth(); ++i) {
    for (int p = 0; p < layout.num_parts(); ++p) {
      const Part& part = layout.part(p);
      const NodeId node = pin.node(i);
      if (tree.resident(Tier::DEVICE, node, p) || !pin.holds(p, i)) {
        continue;
      }
      for (int entry = part.first_entry; entry < part.first_entry + part.entries; ++entry) {
        if (const PageId source = tree.host_page_of(node, entry); source != kNullPage) {
          transfer.moves.push_back({node, entry, source, cache_.take_page()});
        }
      }
    }
  }
  launch(std::move(transfer), sink);
  return LoadTicket(this, next_id_ - 1);
}

void Transfers::launch(Transfer transfer, MoveSink& sink) {
  transfer.id = next_id_;
  in_flight_.push_back(std::move(transfer));
  next_id_ += 1;
  const Transfer& launched = in_flight_.back();
  detached_ += launched.detached ? 1 : 0;
  mark(launched, true);
  for (const PageMove& move : launched.moves) {
    sink.add_move(launched.to, launched.id, move.source, move.target.id());
  }
}

void Transfers::mark(const Transfer& transfer, bool under_way) noexcept {
  for (const PageMove& move : transfer.moves) {
    const int part = cache_.layout().part_of_entry(move.entry);
    if (transfer.to == Tier::HOST) {
      cache_.tree()->set_storing(move.node, part, under_way);
    } else {
      cache_.tree()->set_loading(move.node, part, under_way);
    }
  }
}

std::vector<Transfer>::iterator Transfers::find(TransferId id) noexcept {
  const auto it = std::lower_bound(in_flight_.begin(), in_flight_.end(), id,
                                   [](const Transfer& t, TransferId i) { return t.id < i; });
  return it != in_flight_.end() && it->id == id ? it : in_flight_.end();
}

// Nothing for a load that ended.
void Transfers::orphan(TransferId id) noexcept {
  if (const auto it = find(id); it != in_flight_.end()) {
    it->detached = true;
    detached_ += 1;
  }
}

std::optional<Transfer> Transfers::end(TransferId id, bool ok) noexcept {
  const auto it = find(id);
  if (it == in_flight_.end()) {
    return std::nullopt;
  }
  Transfer transfer = std::move(*it);
  in_flight_.erase(it);
  mark(transfer, false);
  ended_ += 1;
  const auto pages = static_cast<std::int64_t>(transfer.moves.size());
  if (!ok) {
    counters_.failed_transfers += 1;
  } else {
    (transfer.to == Tier::HOST ? counters_.stored_pages : counters_.loaded_pages) += pages;
  }
  for (PageMove& move : transfer.moves) {
    if (ok) {
      cache_.tree()->attach(transfer.to, move.node, move.entry, std::move(move.target));
    } else if (transfer.to == Tier::DEVICE) {
      cache_.tree()->drop_host(move.node, cache_.layout().part_of_entry(move.entry));
    }
    move.target.reset();
  }
  detached_ -= transfer.detached ? 1 : 0;
  return transfer;
}

}  // namespace tokenspeed
