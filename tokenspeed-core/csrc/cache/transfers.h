// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/tree_pin.h"

namespace tokenspeed {

struct Request;

// One page on its way between the tiers.
struct PageMove {
  NodeId node;
  int entry;
  PageId source;  // pinned where it is
  Page target;    // owned here until the ack; then the node's, or free again
};

// Pages that somebody outside the scheduler moves from one tier to the other. It owns both ends
// until its ack: the targets, and a pin on the path of the sources (or of their place in it).
struct Transfer {
  TransferId id = 0;
  Tier to = Tier::HOST;
  TreePin pin;
  std::vector<PageMove> moves;
  Request* request = nullptr;   // whom a load is for; it may be gone
  std::uint64_t arrival = 0;    // tells the request from the next one in the same object
  bool detached = false;        // no request pins the path beside it
};

class Transfers;

// A request's interest in its load. Where that ends first, the transfer goes on alone, and its
// pages come free at its ack.
class [[nodiscard]] LoadTicket {
 public:
  LoadTicket() noexcept = default;
  LoadTicket(LoadTicket&& other) noexcept
      : transfers_(std::exchange(other.transfers_, nullptr)), id_(other.id_) {}
  LoadTicket& operator=(LoadTicket&& other) noexcept {
    if (this != &other) {
      reset();
      transfers_ = std::exchange(other.transfers_, nullptr);
      id_ = other.id_;
    }
    return *this;
  }
  ~LoadTicket() { reset(); }

  void reset() noexcept;
  TransferId id() const noexcept { return id_; }

 private:
  friend class Transfers;
  LoadTicket(Transfers* transfers, TransferId id) noexcept : transfers_(transfers), id_(id) {}

  Transfers* transfers_ = nullptr;
  TransferId id_ = 0;
};

// A path whose request ended, and which the host tier has not seen whole.
struct Retired {
  TreePin pin;
  int stored = 0;  // blocks that the host tier has, or was given
  KeptSession session;
  bool retracted = false;
};

// Where a plan's page moves are written.
class MoveSink {
 public:
  virtual int moves_left(Tier to) const noexcept = 0;
  virtual void add_move(Tier to, TransferId id, PageId source, PageId target) noexcept = 0;

 protected:
  ~MoveSink() = default;
};

// The transfers in flight, and what is still to be written through to the host tier.
class Transfers {
 public:
  Transfers(KvCache& cache, Counters& counters, int max_seqs);

  // The end of a request's run. Never allocates; what does not fit is not backed up.
  void retire(Retired retired) noexcept;

  // Writes through what retired requests left; a plan calls it first.
  void store_retired(MoveSink& sink);
  // The blocks [from, depth) of a running request's path. Returns how far it came.
  int store(const TreePin& path, int from, MoveSink& sink);

  // The leading blocks of a path that the host tier has, or is given right now.
  int stored_prefix(const TreePin& pin) const noexcept;

  // Brings the device pages of `pin`'s path that are on the host only; the caller made sure that
  // they are to be had and fit the sink.
  LoadTicket load(const TreePin& pin, int first_block, Request& request, std::uint64_t arrival,
                  MoveSink& sink);

  // The transfer ended: its pages change hands. Nothing for an id that is not in flight.
  std::optional<Transfer> end(TransferId id, bool ok) noexcept;

  int in_flight() const noexcept { return static_cast<int>(in_flight_.size()); }
  bool pending() const noexcept { return !in_flight_.empty() || !retired_.empty(); }
  // Pages come free at an ack that nobody but these transfers pins.
  bool holds_pages() const noexcept {
    return detached_ > 0 || !retired_.empty();
  }
  std::uint64_t ended() const noexcept { return ended_; }

  template <class F>
  void for_each_pin(F&& visit) const {
    for (const Transfer& transfer : in_flight_) visit(transfer.pin);
    for (const Retired& retired : retired_) visit(retired.pin);
  }
  template <class F>
  void for_each_target(F&& visit) const {
    for (const Transfer& transfer : in_flight_) {
      for (const PageMove& move : transfer.moves) {
        visit(transfer.to, move.target.id());
      }
    }
  }

 private:
  friend class LoadTicket;

  void orphan(TransferId id) noexcept;
  int collect(Transfer& transfer, const TreePin& path, int from, MoveSink& sink);
  bool collect_part(Transfer& transfer, NodeId node, int part, MoveSink& sink);
  void launch(Transfer transfer, MoveSink& sink);
  void mark(const Transfer& transfer, bool under_way) noexcept;
  std::vector<Transfer>::iterator find(TransferId id) noexcept;

  KvCache& cache_;
  Counters& counters_;
  TransferId next_id_ = 1;
  std::uint64_t ended_ = 0;
  int detached_ = 0;
  std::vector<Transfer> in_flight_;  // by id, which only grows
  std::vector<Retired> retired_;
};

inline void LoadTicket::reset() noexcept {
  if (transfers_ != nullptr) {
    std::exchange(transfers_, nullptr)->orphan(id_);
  }
}

}  // namespace tokenspeed
