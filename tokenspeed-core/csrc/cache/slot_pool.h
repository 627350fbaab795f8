// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cassert>
#include <utility>
#include <vector>

#include "types.h"

namespace tokenspeed {

class SlotPool;

// The right to one row of the device-resident state. The epoch counts the slot's tenants, so
// that what was meant for one tenant is never taken for the next.
class [[nodiscard]] Slot {
 public:
  Slot() noexcept = default;
  Slot(Slot&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_), epoch_(other.epoch_) {}
  Slot& operator=(Slot&& other) noexcept {
    if (this != &other) {
      reset();
      pool_ = std::exchange(other.pool_, nullptr);
      id_ = other.id_;
      epoch_ = other.epoch_;
    }
    return *this;
  }
  ~Slot() { reset(); }

  void reset() noexcept;
  SlotId id() const noexcept { return id_; }
  Epoch epoch() const noexcept { return epoch_; }
  explicit operator bool() const noexcept { return pool_ != nullptr; }

 private:
  friend class SlotPool;
  Slot(SlotPool* pool, SlotId id, Epoch epoch) noexcept : pool_(pool), id_(id), epoch_(epoch) {}

  SlotPool* pool_ = nullptr;
  SlotId id_ = 0;
  Epoch epoch_ = 0;
};

// Slots 1..max_seqs. 0 is reserved and max_seqs + 1 is the sentinel of padded rows.
class SlotPool {
 public:
  explicit SlotPool(int max_seqs) : epochs_(static_cast<std::size_t>(max_seqs) + 1, 0) {
    free_.reserve(static_cast<std::size_t>(max_seqs));
    for (SlotId id = max_seqs; id >= 1; --id) {
      free_.push_back(id);
    }
  }
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;
  ~SlotPool() { assert(free_.size() + 1 == epochs_.size() && "a slot outlived its pool"); }

  // An empty Slot when none is free.
  Slot take() noexcept {
    if (free_.empty()) {
      return {};
    }
    const SlotId id = free_.back();
    free_.pop_back();
    return Slot(this, id, ++epochs_[static_cast<std::size_t>(id)]);
  }

  int free() const noexcept { return static_cast<int>(free_.size()); }

 private:
  friend class Slot;
  void give_back(SlotId id) noexcept { free_.push_back(id); }

  std::vector<Epoch> epochs_;
  std::vector<SlotId> free_;
};

inline void Slot::reset() noexcept {
  if (pool_ != nullptr) {
    std::exchange(pool_, nullptr)->give_back(id_);
  }
}

}  // namespace tokenspeed
