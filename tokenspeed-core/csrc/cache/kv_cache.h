// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/kv_events.h"
#include "cache/layout.h"
#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "cache/retention.h"
#include "config.h"
#include "counters.h"

namespace tokenspeed {

// A session whose pages are kept. The generation tells it from the next one under the same id.
struct KeptSession {
  SessionId id = kNoSession;
  std::uint32_t generation = 0;
};

// The pages of both tiers and what is cached in them. Pages come from the free list first, then
// from the least recently used cached ones, then from the kept session that is worth the least.
class KvCache {
 public:
  KvCache(const Config& config, const Layout& layout, Counters& counters);

  // Empty when every page is in use.
  Page take_page() noexcept;
  Page take_host_page() noexcept;

  bool can_take_host_page() const noexcept {
    return host_.free() > 0 || tree_->has_free(Tier::HOST);
  }

  // What take_page can give.
  int available_pages() const noexcept {
    return device_.free() + (tree_ ? tree_->page_count(Grip::FREE) + tree_->page_count(Grip::KEPT)
                                   : 0);
  }
  int cached_pages() const noexcept { return available_pages() - device_.free(); }

  // An admitted prompt: which ended session does it continue? That one's pages are not kept for
  // it any longer, as the request pins them now.
  ReturnHistory continue_session(Namespace ns, std::span<const PageKey> keys,
                                 std::int64_t arrived_ms) noexcept;

  // A request ended well: is its path worth keeping? If so, `keep` it.
  KeptSession end_session(const SessionEnd& end) noexcept;
  // Nothing happens when the session was given up or continued since.
  void keep(KeptSession session, TreePin pin) noexcept;
  bool is_kept(KeptSession session) const noexcept {
    return session.id != kNoSession &&
           generation_[static_cast<std::size_t>(session.id)] == session.generation;
  }

  // Everything that is not in use goes, on both tiers.
  void clear() noexcept;

  PrefixTree* tree() noexcept { return tree_ ? &*tree_ : nullptr; }
  const PrefixTree* tree() const noexcept { return tree_ ? &*tree_ : nullptr; }
  const PagePool& device() const noexcept { return device_; }
  const PagePool& host() const noexcept { return host_; }
  const Layout& layout() const noexcept { return layout_; }
  // What the prefix cache gained and lost since the last call.
  KvEventColumns take_events();
  bool has_host_tier() const noexcept { return tree_ && host_.total() > 0; }
  void set_time(std::int64_t now_ms) noexcept { now_ms_ = now_ms; }
  std::int64_t now_ms() const noexcept { return now_ms_; }

  template <class F>
  void for_each_kept(F&& visit) const {
    for (const TreePin& pin : kept_) {
      if (pin) visit(pin);
    }
  }

 private:
  bool evict() noexcept;
  void give_up(SessionId session) noexcept;
  void forget(SessionId session) noexcept;

  const Layout& layout_;
  Counters& counters_;
  KvEventLog events_;
  PagePool device_;  // the pools outlive the tree, whose nodes own pages
  PagePool host_;
  std::optional<PrefixTree> tree_;
  std::optional<Retention> retention_;
  std::vector<TreePin> kept_;               // by SessionId
  std::vector<std::uint32_t> generation_;  // by SessionId: counts how often its session went
  std::int64_t now_ms_ = 0;
};

}  // namespace tokenspeed
