// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "types.h"

namespace tokenspeed {

// What the caller declares: layers whose KV has one shape and one retention rule.
struct CacheGroupConfig {
  std::string kind;  // "full", "sliding" or "state"
  int page_size = 0;
  int window = 0;
};

enum class Kind : std::uint8_t { FULL, SLIDING, STATE };

inline constexpr int kMaxGroups = 8;

// A cache group, and where its pages stand among the entries of a block.
struct Group {
  Kind kind;
  int page_size;
  int window;
  int first_entry;
  int entries;  // pages per block
  int part;
};

// What the prefix tree keeps and gives up as one: all full groups together, and each other group.
struct Part {
  Kind kind;
  int window;
  int first_entry;
  int entries;
  int group;  // the first of its groups
};

// How a block of tokens lies in pages. A block is the unit of the prefix tree: the least common
// multiple of the groups' page sizes, so that its end is a page boundary of every group.
//
//   entries of a block   [ full group a | full group b | sliding | state ]
//   parts                [ part 0                      | part 1  | part 2 ]
class Layout {
 public:
  explicit Layout(const std::vector<CacheGroupConfig>& configs) {
    for (const CacheGroupConfig& config : configs) {
      block_size_ = std::lcm(block_size_, config.page_size);
    }
    groups_.resize(configs.size());
    for (const Kind kind : {Kind::FULL, Kind::SLIDING, Kind::STATE}) {
      for (std::size_t g = 0; g < configs.size(); ++g) {
        if (kind_of(configs[g]) == kind) {
          place(static_cast<int>(g), kind, configs[g]);
        }
      }
    }
  }

  static Kind kind_of(const CacheGroupConfig& config) noexcept {
    return config.kind == "sliding" ? Kind::SLIDING
           : config.kind == "state" ? Kind::STATE
                                    : Kind::FULL;
  }

  int block_size() const noexcept { return block_size_; }
  int width() const noexcept { return width_; }  // entries of a block
  std::span<const Group> groups() const noexcept { return groups_; }
  std::span<const Part> parts() const noexcept { return parts_; }
  int num_groups() const noexcept { return static_cast<int>(groups_.size()); }
  int num_parts() const noexcept { return static_cast<int>(parts_.size()); }
  const Group& group(int g) const noexcept { return groups_[static_cast<std::size_t>(g)]; }
  const Part& part(int p) const noexcept { return parts_[static_cast<std::size_t>(p)]; }
  bool has_full() const noexcept { return parts_.front().kind == Kind::FULL; }
  // Pins hold the full part with its node, and of each part from here on a range of the path.
  int first_ranged_part() const noexcept { return has_full() ? 1 : 0; }
  int part_of_entry(int entry) const noexcept {
    int p = 0;
    while (entry >= part(p).first_entry + part(p).entries) {
      ++p;
    }
    return p;
  }
  // The part of recurrent state, -1 without one. All state groups checkpoint together.
  int state_part() const noexcept { return state_part_; }
  bool has_state() const noexcept { return state_part_ >= 0; }

  // Among the state groups, which one is this?
  int state_index(int g) const noexcept {
    int index = 0;
    for (int other = 0; other < g; ++other) {
      index += group(other).kind == Kind::STATE ? 1 : 0;
    }
    return index;
  }

  // The first token that a query at `position` reads.
  static int first_read(Kind kind, int window, int position) noexcept {
    return kind == Kind::FULL ? 0 : std::max(0, position - (window - 1));
  }

 private:
  void place(int g, Kind kind, const CacheGroupConfig& config) {
    const int entries = kind == Kind::STATE ? 1 : block_size_ / config.page_size;
    const bool joins = !parts_.empty() && parts_.back().kind == kind && kind != Kind::SLIDING;
    if (joins) {
      parts_.back().entries += entries;
    } else {
      parts_.push_back({kind, config.window, width_, entries, g});
    }
    const int part = num_parts() - 1;
    groups_[static_cast<std::size_t>(g)] = {kind,   config.page_size, config.window,
                                            width_, entries,          part};
    width_ += entries;
    if (kind == Kind::STATE) {
      state_part_ = part;
    }
  }

  std::vector<Group> groups_;
  std::vector<Part> parts_;
  int block_size_ = 1;
  int width_ = 0;
  int state_part_ = -1;
};

}  // namespace tokenspeed
