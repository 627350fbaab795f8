// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "cache/kv_cache.h"

#include <utility>

namespace tokenspeed {

KvCache::KvCache(const Config& config, const Layout& layout, Counters& counters)
    : layout_(layout),
      counters_(counters),
      events_(config.kv_events && config.prefix_cache, layout.block_size()),
      device_(config.num_pages),
      host_(config.prefix_cache ? config.host_pages : 0) {
  if (config.prefix_cache) {
    tree_.emplace(layout, device_, host_, events_);
    // Retention takes a key for its content, which only a whole key is.
    if (config.retention && config.hash_bits == 64) {
      retention_.emplace(config.num_pages);
      kept_.resize(Retention::kMaxKept);
      generation_.resize(Retention::kMaxKept);
    }
  }
}

Page KvCache::take_page() noexcept {
  while (device_.free() == 0 && evict()) {
  }
  return device_.take();
}

Page KvCache::take_host_page() noexcept {
  while (host_.free() == 0) {
    const int pages = tree_->evict(Tier::HOST);
    if (pages == 0) {
      break;
    }
    counters_.host_evictions += pages;
  }
  return host_.take();
}

bool KvCache::evict() noexcept {
  if (!tree_) {
    return false;
  }
  if (const int pages = tree_->evict(Tier::DEVICE); pages > 0) {
    counters_.evictions += pages;
    return true;
  }
  const SessionId worst = retention_ ? retention_->worst(now_ms_) : kNoSession;
  if (worst == kNoSession) {
    return false;
  }
  give_up(worst);
  return true;
}

ReturnHistory KvCache::continue_session(Namespace ns, std::span<const PageKey> keys,
                                        std::int64_t arrived_ms) noexcept {
  if (!retention_) {
    return {};
  }
  const Return found = retention_->continue_session(ns, keys, arrived_ms);
  if (found.kept != kNoSession) {
    forget(found.kept);
  }
  counters_.sessions_returned += found.came_back() ? 1 : 0;
  return found.history;
}

KeptSession KvCache::end_session(const SessionEnd& end) noexcept {
  if (!retention_) {
    return {};
  }
  KeptSession session{retention_->end_session(end)};
  if (session.id != kNoSession) {
    session.generation = generation_[static_cast<std::size_t>(session.id)];
    counters_.kept_sessions += 1;
  }
  for (SessionId worst = retention_->to_give_up(now_ms_); worst != kNoSession;
       worst = retention_->to_give_up(now_ms_)) {
    give_up(worst);
  }
  return session;
}

void KvCache::forget(SessionId session) noexcept {
  kept_[static_cast<std::size_t>(session)].reset();
  generation_[static_cast<std::size_t>(session)] += 1;
}

void KvCache::give_up(SessionId session) noexcept {
  retention_->give_up(session);
  forget(session);
}

void KvCache::keep(KeptSession session, TreePin pin) noexcept {
  if (is_kept(session)) {
    kept_[static_cast<std::size_t>(session.id)] = std::move(pin);
  }
}

KvEventColumns KvCache::take_events() {
  if (events_.lost()) {
    events_.restart(tree_->reportable());
    tree_->report_all();
  }
  return events_.take();
}

void KvCache::clear() noexcept {
  while (evict()) {
  }
  while (tree_ && tree_->evict(Tier::HOST) > 0) {
  }
  if (retention_) {
    retention_->clear();
  }
  if (tree_) {
    events_.cleared();
  }
}

}  // namespace tokenspeed
