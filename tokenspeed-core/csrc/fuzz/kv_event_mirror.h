// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "cache/kv_events.h"
#include "fuzz/failure.h"
#include "fuzz/truth.h"

namespace tokenspeed::fuzz {

// What a reader of the KV events believes to be cached, and whether they tell it a straight story.
class KvEventMirror {
 public:
  explicit KvEventMirror(int block_size) : block_size_(block_size) {}

  void read(const KvEventColumns& events) {
    for (std::size_t i = 0; i < events.kind.size(); ++i) {
      const auto begin = static_cast<std::size_t>(events.token_start[i]);
      const auto end = static_cast<std::size_t>(events.token_start[i + 1]);
      const std::span<const TokenId> tokens(events.tokens.data() + begin, end - begin);
      const Place place{events.tier[i], events.group[i], events.block[i]};
      switch (static_cast<KvEvent>(events.kind[i])) {
        case KvEvent::STORED:
          stored(place, events.parent[i], events.ns[i], tokens);
          break;
        case KvEvent::REMOVED:
          require(stored_.erase(place) == 1, "a block is removed that was not stored");
          break;
        case KvEvent::CLEARED:
          stored_.clear();
          break;
      }
    }
  }

  bool empty() const noexcept { return stored_.empty(); }

  // visit(tier, group, block) of everything that is stored.
  template <class F>
  void for_each(F&& visit) const {
    for (const auto& [place, _] : stored_) {
      visit(place.tier, place.group, place.block);
    }
  }

 private:
  struct Place {
    int tier;
    int group;
    PageKey block;
    auto operator<=>(const Place&) const = default;
  };

  // The prefix that a block ends is named by what it holds: ids never mean two things.
  void stored(const Place& place, PageKey parent, Namespace ns, std::span<const TokenId> tokens) {
    require(static_cast<int>(tokens.size()) == block_size_, "an event without a block of tokens");
    require(parent == 0 || prefixes_.contains(parent), "a block is stored before its parent");
    Kv prefix = parent == 0 ? kv_of_nothing(ns) : prefixes_[parent];
    for (const TokenId token : tokens) {
      prefix = kv_after(prefix, token);
    }
    const auto [known, is_new] = prefixes_.try_emplace(place.block, prefix);
    require(known->second == prefix, "one block id names two prefixes",
            parent == 0 ? "it has no parent" : "it has a parent");
    require(stored_.insert({place, parent}).second, "a block is stored twice");
  }

  int block_size_;
  std::map<Place, PageKey> stored_;
  std::map<PageKey, Kv> prefixes_;  // of every block ever stored
};

}  // namespace tokenspeed::fuzz
