// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "cache/retention.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <numeric>

namespace tokenspeed {

namespace {

constexpr int kMaxRemembered = 4096;
constexpr int kMaxTenants = 256;
constexpr int kLogUnit = 256;               // ReturnHistory::log_gap is in 1/256
constexpr int kFirstGuess = 12 * kLogUnit;  // 4 s
constexpr int kSessionMemory = 8;           // returns over which a session's mean runs
constexpr int kTenantMemory = 64;           // and a namespace's
constexpr int kTenantWeight = 2;            // of a namespace's mean, in returns of the session
constexpr std::int64_t kPatience = 8;       // usual gaps after which a session is not waited for
constexpr std::int64_t kMaxGapMs = std::int64_t{1} << 40;

// Integers only, so that every build decides alike. The mantissa stands for the logarithm's
// fraction, which is at most 0.09 off.
int log2_of(std::int64_t value) noexcept {
  const auto x = static_cast<std::uint64_t>(std::clamp<std::int64_t>(value, 1, kMaxGapMs));
  const int whole = static_cast<int>(std::bit_width(x)) - 1;
  const auto mantissa = static_cast<int>((x << 8) >> whole);  // kLogUnit <= mantissa < 2 kLogUnit
  return whole * kLogUnit + mantissa - kLogUnit;
}

std::int64_t exp2_of(int log) noexcept {
  const std::int64_t mantissa = kLogUnit + log % kLogUnit;
  return (mantissa << (log / kLogUnit)) >> 8;
}

void learn(ReturnHistory& history, int log_gap, int memory) noexcept {
  history.returns = std::min(history.returns + 1, memory);
  history.log_gap += (log_gap - history.log_gap) / history.returns;
}

}  // namespace

// An admission looks up every key of a long prompt and finds none of them: with one entry in eight
// in use that is one read and one branch that goes the same way, 2 ns. At one in two it is 10.
Retention::KeyIndex::KeyIndex(int capacity)
    : entries_(std::bit_ceil(static_cast<std::size_t>(capacity) * 8)) {}

std::size_t Retention::KeyIndex::home(PageKey key) const noexcept {
  return static_cast<std::size_t>(key) & (entries_.size() - 1);
}

std::size_t Retention::KeyIndex::slot_of(PageKey key) const noexcept {
  std::size_t slot = home(key);
  while (entries_[slot].session != kNone && entries_[slot].key != key) {
    slot = (slot + 1) & (entries_.size() - 1);
  }
  return slot;
}

Retention::Index Retention::KeyIndex::find(PageKey key) const noexcept {
  return entries_[slot_of(key)].session;
}

void Retention::KeyIndex::insert(PageKey key, Index session) noexcept {
  Entry& entry = entries_[slot_of(key)];
  assert(entry.session == kNone);
  entry = {key, session};
}

// Whatever was pushed past the hole moves back into it, so that a search may stop at any hole.
void Retention::KeyIndex::erase(PageKey key) noexcept {
  const std::size_t mask = entries_.size() - 1;
  std::size_t hole = slot_of(key);
  entries_[hole] = {};
  for (std::size_t slot = (hole + 1) & mask; entries_[slot].session != kNone;
       slot = (slot + 1) & mask) {
    const std::size_t pushed = (slot - home(entries_[slot].key)) & mask;
    if (pushed >= ((slot - hole) & mask)) {
      entries_[hole] = entries_[slot];
      entries_[slot] = {};
      hole = slot;
    }
  }
}

void Retention::KeyIndex::clear() noexcept { std::fill(entries_.begin(), entries_.end(), Entry{}); }

std::int64_t Retention::Kept::wait_ms(std::int64_t now_ms) const noexcept {
  return std::max(gap_ms, now_ms - ended_ms);
}

bool Retention::Kept::overdue(std::int64_t now_ms) const noexcept {
  return now_ms - ended_ms > gap_ms * kPatience;
}

// A session has at least one page, so a small pool needs small tables. A quarter of the pool is
// never kept: sessions that are new can only be seen to return while LRU still holds them or
// their ghost, and requests that run need room without giving anything up.
Retention::Retention(int pool_pages)
    : budget_(pool_pages - pool_pages / 4),
      sessions_(static_cast<std::size_t>(
          std::clamp(4 * std::min(pool_pages, kMaxRemembered), kMaxKept / 4, kMaxRemembered))),
      kept_(static_cast<std::size_t>(std::clamp(pool_pages, 1, kMaxKept))),
      index_(static_cast<int>(sessions_.size())) {
  namespaces_.reserve(kMaxTenants);
  tenants_.reserve(kMaxTenants);
  free_.resize(sessions_.size());
  free_kept_.resize(kept_.size());
  clear();
}

void Retention::clear() noexcept {
  std::fill(sessions_.begin(), sessions_.end(), Session{});
  std::fill(kept_.begin(), kept_.end(), Kept{});
  free_.resize(sessions_.size());
  std::iota(free_.rbegin(), free_.rend(), Index{0});
  free_kept_.resize(kept_.size());
  std::iota(free_kept_.rbegin(), free_kept_.rend(), SessionId{0});
  namespaces_.clear();
  tenants_.clear();
  index_.clear();
  kept_pages_ = num_kept_ = num_holders_ = 0;
}

Return Retention::continue_session(Namespace ns, std::span<const PageKey> keys,
                                   std::int64_t now_ms) noexcept {
  const Index tenant = find_tenant(ns);
  if (tenant == kNone) {
    return {};
  }
  for (std::size_t i = keys.size(); i-- > 0;) {
    const Index found = index_.find(keys[i]);
    if (found == kNone || at(found).tenant != tenant) {
      continue;
    }
    Return result{at(found).history, at(found).kept};
    const int log_gap = log2_of(now_ms - at(found).ended_ms);
    learn(result.history, log_gap, kSessionMemory);
    learn(tenant_at(tenant).history, log_gap, kTenantMemory);
    tenant_at(tenant).last_used = sequence_;
    if (result.kept != kNoSession) {
      give_up(result.kept);
    }
    forget(found);
    return result;
  }
  return {};
}

SessionId Retention::end_session(const SessionEnd& end) noexcept {
  const Index tenant = use_tenant(end.ns);
  if (tenant == kNone) {
    return kNoSession;
  }
  if (const Index equal = index_.find(end.leaf); equal != kNone) {
    if (at(equal).kept != kNoSession) {  // its pages are pinned already
      kept_at(at(equal).kept).ended_ms = at(equal).ended_ms = end.now_ms;
      return kNoSession;
    }
    forget(equal);
  }
  if (free_.empty()) {
    forget_oldest_ghost();
  }
  const Index session = free_.back();
  free_.pop_back();
  at(session) = {end.leaf, end.now_ms, end.history, tenant, kNoSession, kNone, kNone};
  index_.insert(end.leaf, session);

  const Kept candidate{end.now_ms, usual_gap_ms(at(session)), ++sequence_, end.pages, tenant,
                       session};
  if (end.history.returns == 0 || !worth_keeping(candidate, end.now_ms)) {
    append_ghost(session);
    return kNoSession;
  }
  return keep(candidate);
}

SessionId Retention::to_give_up(std::int64_t now_ms) const noexcept {
  if (num_holders_ > 1) {
    for (Index tenant = 0; tenant < static_cast<Index>(tenants_.size()); ++tenant) {
      if (tenants_[static_cast<std::size_t>(tenant)].kept_pages > tenant_limit(true)) {
        return worst_of(tenant, now_ms);
      }
    }
  }
  const bool too_much = kept_pages_ > budget_ || free_kept_.empty();
  return too_much ? worst(now_ms) : first_overdue(now_ms);
}

void Retention::give_up(SessionId id) noexcept {
  const Index session = kept_at(id).session;
  unkeep(id);
  append_ghost(session);
}

// A candidate that would have to go next is not kept in the first place.
bool Retention::worth_keeping(const Kept& candidate, std::int64_t now_ms) const noexcept {
  const Tenant& tenant = tenants_[static_cast<std::size_t>(candidate.tenant)];
  const int limit = tenant_limit(num_holders_ > (tenant.kept_sessions > 0 ? 1 : 0));
  if (candidate.pages > limit || free_kept_.empty()) {
    return false;
  }
  const bool over_limit = tenant.kept_pages + candidate.pages > limit;
  const bool first_to_share = num_holders_ == 1 && tenant.kept_sessions == 0;
  if (first_to_share || (!over_limit && kept_pages_ + candidate.pages <= budget_)) {
    return true;
  }
  const SessionId rival = worst_of(over_limit ? candidate.tenant : kAnyTenant, now_ms);
  return rival != kNoSession &&
         candidate.wait_ms(now_ms) <= kept_[static_cast<std::size_t>(rival)].wait_ms(now_ms);
}

SessionId Retention::keep(const Kept& candidate) noexcept {
  const SessionId id = free_kept_.back();
  free_kept_.pop_back();
  kept_at(id) = candidate;
  at(candidate.session).kept = id;
  Tenant& tenant = tenant_at(candidate.tenant);
  num_holders_ += tenant.kept_sessions == 0 ? 1 : 0;
  tenant.kept_sessions += 1;
  tenant.kept_pages += candidate.pages;
  kept_pages_ += candidate.pages;
  num_kept_ += 1;
  return id;
}

void Retention::unkeep(SessionId id) noexcept {
  Kept& kept = kept_at(id);
  assert(kept.session != kNone);
  at(kept.session).kept = kNoSession;
  Tenant& tenant = tenant_at(kept.tenant);
  tenant.kept_sessions -= 1;
  tenant.kept_pages -= kept.pages;
  num_holders_ -= tenant.kept_sessions == 0 ? 1 : 0;
  kept_pages_ -= kept.pages;
  num_kept_ -= 1;
  kept = {};
  free_kept_.push_back(id);
}

SessionId Retention::worst_of(Index tenant, std::int64_t now_ms) const noexcept {
  SessionId worst = kNoSession;
  if (num_kept_ == 0) {
    return worst;
  }
  std::int64_t longest = -1;
  std::uint64_t sequence = 0;
  for (SessionId id = 0; id < static_cast<SessionId>(kept_.size()); ++id) {
    const Kept& kept = kept_[static_cast<std::size_t>(id)];
    if (kept.session == kNone || (tenant != kAnyTenant && kept.tenant != tenant)) {
      continue;
    }
    const std::int64_t wait = kept.wait_ms(now_ms);
    if (wait > longest || (wait == longest && kept.sequence < sequence)) {
      worst = id;
      longest = wait;
      sequence = kept.sequence;
    }
  }
  return worst;
}

SessionId Retention::first_overdue(std::int64_t now_ms) const noexcept {
  const auto found = num_kept_ == 0
                         ? kept_.end()
                         : std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
                             return kept.session != kNone && kept.overdue(now_ms);
                           });
  return found == kept_.end() ? kNoSession : static_cast<SessionId>(found - kept_.begin());
}

// A session with few returns leans on its namespace.
std::int64_t Retention::usual_gap_ms(const Session& session) const noexcept {
  const ReturnHistory& own = session.history;
  const ReturnHistory& others = tenants_[static_cast<std::size_t>(session.tenant)].history;
  const int theirs = others.returns > 0 ? others.log_gap : kFirstGuess;
  return exp2_of((theirs * kTenantWeight + own.log_gap * own.returns) /
                 (kTenantWeight + own.returns));
}

Retention::Index Retention::find_tenant(Namespace ns) const noexcept {
  const auto found = std::find(namespaces_.begin(), namespaces_.end(), ns);
  return found == namespaces_.end() ? kNone : static_cast<Index>(found - namespaces_.begin());
}

// The namespace's entry, in the place of one without kept sessions if the table is full.
Retention::Index Retention::use_tenant(Namespace ns) noexcept {
  Index tenant = find_tenant(ns);
  if (tenant == kNone && tenants_.size() < kMaxTenants) {
    tenant = static_cast<Index>(tenants_.size());
    namespaces_.push_back(ns);
    tenants_.emplace_back();
  } else if (tenant == kNone) {
    tenant = replaceable_tenant();
    if (tenant == kNone) {
      return kNone;
    }
    while (tenant_at(tenant).oldest != kNone) {
      forget(tenant_at(tenant).oldest);
    }
    namespaces_[static_cast<std::size_t>(tenant)] = ns;
    tenant_at(tenant) = {};
  }
  tenant_at(tenant).last_used = sequence_;
  return tenant;
}

// The one that was used least recently and holds nothing; kNone: all hold kept sessions.
Retention::Index Retention::replaceable_tenant() const noexcept {
  Index result = kNone;
  std::uint64_t least = 0;
  for (Index i = 0; i < static_cast<Index>(tenants_.size()); ++i) {
    const Tenant& tenant = tenants_[static_cast<std::size_t>(i)];
    if (tenant.kept_sessions == 0 && (result == kNone || tenant.last_used < least)) {
      result = i;
      least = tenant.last_used;
    }
  }
  return result;
}

// Of the namespace that has most ghosts: none can push out what a smaller one remembers. There
// is one, since fewer sessions can be kept than remembered.
void Retention::forget_oldest_ghost() noexcept {
  const auto most =
      std::max_element(tenants_.begin(), tenants_.end(),
                       [](const Tenant& a, const Tenant& b) { return a.ghosts < b.ghosts; });
  forget(most->oldest);
}

void Retention::forget(Index session) noexcept {
  Session& gone = at(session);
  assert(gone.kept == kNoSession);
  index_.erase(gone.key);
  remove_ghost(session);
  gone = {};
  free_.push_back(session);
}

void Retention::append_ghost(Index session) noexcept {
  Tenant& tenant = tenant_at(at(session).tenant);
  at(session).older = tenant.newest;
  (tenant.newest == kNone ? tenant.oldest : at(tenant.newest).newer) = session;
  tenant.newest = session;
  tenant.ghosts += 1;
}

void Retention::remove_ghost(Index session) noexcept {
  const Session& gone = at(session);
  Tenant& tenant = tenant_at(gone.tenant);
  (gone.older == kNone ? tenant.oldest : at(gone.older).newer) = gone.newer;
  (gone.newer == kNone ? tenant.newest : at(gone.newer).older) = gone.older;
  tenant.ghosts -= 1;
}

}  // namespace tokenspeed
