// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

// Collects events until they are taken. Adding never allocates: beyond its room the log is lost,
// and whoever takes it next starts it anew with all that is resident.
class KvEventLog {
 public:
  KvEventLog(bool enabled, int block_size)
      : enabled_(enabled), block_size_(static_cast<std::size_t>(block_size)) {
    make_room(kRoom);
  }

  void stored(Tier tier, int group, const KvBlock& block) noexcept {
    if (fits()) {
      columns_.tokens.insert(columns_.tokens.end(), block.tokens.begin(), block.tokens.end());
      add(KvEvent::STORED, static_cast<std::uint8_t>(tier), group, block);
    }
  }
  void removed(Tier tier, int group, const KvBlock& block) noexcept {
    if (fits()) {
      add(KvEvent::REMOVED, static_cast<std::uint8_t>(tier), group, block);
    }
  }
  // Nothing is resident any more.
  void cleared() noexcept {
    lost_ = false;
    clear();
    if (fits()) {
      add(KvEvent::CLEARED, 0, 0, {});
    }
  }

  bool lost() const noexcept { return lost_; }
  // CLEARED, and room for `events` more.
  void restart(std::size_t events) {
    make_room(events + kRoom);
    cleared();
  }

  KvEventColumns take() {
    KvEventColumns taken = columns_;
    clear();
    return taken;
  }

 private:
  static constexpr std::size_t kRoom = 8192;

  void make_room(std::size_t events) {
    if (!enabled_ || events <= room_) {
      return;
    }
    columns_.kind.reserve(events);
    columns_.tier.reserve(events);
    columns_.group.reserve(events);
    columns_.block.reserve(events);
    columns_.parent.reserve(events);
    columns_.ns.reserve(events);
    columns_.token_start.reserve(events + 1);
    columns_.tokens.reserve(events * block_size_);
    room_ = events;
  }
  void clear() noexcept {
    columns_.kind.clear();
    columns_.tier.clear();
    columns_.group.clear();
    columns_.block.clear();
    columns_.parent.clear();
    columns_.ns.clear();
    columns_.token_start.resize(1);
    columns_.tokens.clear();
  }
  bool fits() noexcept {
    lost_ |= enabled_ && columns_.kind.size() == room_;
    return enabled_ && !lost_;
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
  std::size_t block_size_;
  std::size_t room_ = 0;
  bool lost_ = false;
  KvEventColumns columns_;
};

}  // namespace tokenspeed
