// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "cache/layout.h"
#include "types.h"

namespace tokenspeed {

class PrefixTree;

using NodeId = std::int32_t;
inline constexpr NodeId kRootNode = 0;
inline constexpr NodeId kNoNode = -1;

// PIN: somebody reads it, it stays. KEEP: it is worth more than its age says; it goes when the
// cache gives up this hold, and not before.
enum class HoldKind : std::uint8_t { PIN, KEEP };

// Keeps a path of the tree resident: its nodes from the first to the tip, their full pages, and
// of each other part the nodes [from(part), depth).
class [[nodiscard]] TreePin {
 public:
  TreePin() noexcept = default;
  TreePin(TreePin&& other) noexcept
      : tree_(std::exchange(other.tree_, nullptr)),
        kind_(other.kind_),
        path_(std::move(other.path_)),
        from_(other.from_) {
    other.path_.clear();
  }
  TreePin& operator=(TreePin&& other) noexcept {
    if (this != &other) {
      reset();
      tree_ = std::exchange(other.tree_, nullptr);
      kind_ = other.kind_;
      path_ = std::move(other.path_);
      from_ = other.from_;
      other.path_.clear();
    }
    return *this;
  }
  ~TreePin() { reset(); }

  // Deepest first, so that the list of what may go has every node before its parent.
  void reset() noexcept;

  // Of a part that is not full: the nodes below `index` are not needed any more.
  void advance(int part, int index) noexcept;

  int depth() const noexcept { return static_cast<int>(path_.size()); }
  NodeId tip() const noexcept { return path_.empty() ? kRootNode : path_.back(); }
  NodeId node(int index) const noexcept { return path_[static_cast<std::size_t>(index)]; }
  std::span<const NodeId> path() const noexcept { return path_; }
  // Does it hold this part of the node at `index`?
  bool holds(int part, int index) const noexcept;
  explicit operator bool() const noexcept { return tree_ != nullptr; }

 private:
  friend class PrefixTree;

  int from(int part) const noexcept { return from_[static_cast<std::size_t>(part)]; }

  PrefixTree* tree_ = nullptr;
  HoldKind kind_ = HoldKind::PIN;
  std::vector<NodeId> path_;
  std::array<int, kMaxGroups> from_{};
};

}  // namespace tokenspeed
