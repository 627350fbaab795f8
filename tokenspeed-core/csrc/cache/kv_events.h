// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "types.h"

namespace tokenspeed {

enum class KvEvent : std::uint8_t { STORED = 1, REMOVED = 2, CLEARED = 3 };

// What became resident and what went, as flat columns: entry i has the tokens
// [token_start[i], token_start[i + 1]).
struct KvEventColumns {
  std::vector<std::uint8_t> kind;
  std::vector<std::uint8_t> tier;
  std::vector<std::uint8_t> group;
  std::vector<PageKey> block;
  std::vector<PageKey> parent;
  std::vector<Namespace> ns;
  std::vector<std::int32_t> token_start{0};
  std::vector<TokenId> tokens;
};

struct KvBlock {
  PageKey key;
  PageKey parent;
  Namespace ns;
  std::span<const TokenId> tokens;
};

// Collects events until they are taken. All room is made at construction, so that adding never
// allocates; when nobody takes them, the log starts anew with CLEARED: a reader then believes
// less than is true, never more.
class KvEventLog {
 public:
  explicit KvEventLog(bool enabled, int block_size) : enabled_(enabled), block_size_(block_size) {
    if (enabled_) {
      make_room(columns_);
    }
  }

  bool enabled() const noexcept { return enabled_; }

  void stored(Tier tier, int group, const KvBlock& block) noexcept {
    if (!enabled_) return;
    spill();
    columns_.tokens.insert(columns_.tokens.end(), block.tokens.begin(), block.tokens.end());
    add(KvEvent::STORED, static_cast<std::uint8_t>(tier), group, block);
  }
  void removed(Tier tier, int group, const KvBlock& block) noexcept {
    if (!enabled_) return;
    spill();
    add(KvEvent::REMOVED, static_cast<std::uint8_t>(tier), group, block);
  }
  void cleared() noexcept {
    if (!enabled_) return;
    clear(columns_);
    add(KvEvent::CLEARED, 0, 0, {});
  }

  KvEventColumns take() {
    if (columns_.kind.empty()) {
      return {};
    }
    KvEventColumns fresh;
    make_room(fresh);
    return std::exchange(columns_, std::move(fresh));
  }

 private:
  static constexpr std::size_t kMaxEvents = 8192;

  void make_room(KvEventColumns& columns) const {
    columns.kind.reserve(kMaxEvents);
    columns.tier.reserve(kMaxEvents);
    columns.group.reserve(kMaxEvents);
    columns.block.reserve(kMaxEvents);
    columns.parent.reserve(kMaxEvents);
    columns.ns.reserve(kMaxEvents);
    columns.token_start.reserve(kMaxEvents + 1);
    columns.tokens.reserve(kMaxEvents * static_cast<std::size_t>(block_size_));
  }
  static void clear(KvEventColumns& columns) noexcept {
    columns.kind.clear();
    columns.tier.clear();
    columns.group.clear();
    columns.block.clear();
    columns.parent.clear();
    columns.ns.clear();
    columns.token_start.resize(1);
    columns.tokens.clear();
  }
  void spill() noexcept {
    if (columns_.kind.size() + 1 >= kMaxEvents) {
      cleared();
    }
  }
  void add(KvEvent kind, std::uint8_t tier, int group, const KvBlock& block) noexcept {
    columns_.kind.push_back(static_cast<std::uint8_t>(kind));
    columns_.tier.push_back(tier);
    columns_.group.push_back(static_cast<std::uint8_t>(group));
    columns_.block.push_back(block.key);
    columns_.parent.push_back(block.parent);
    columns_.ns.push_back(block.ns);
    columns_.token_start.push_back(static_cast<std::int32_t>(columns_.tokens.size()));
  }

  bool enabled_;
  int block_size_;
  KvEventColumns columns_;
};

}  // namespace tokenspeed
