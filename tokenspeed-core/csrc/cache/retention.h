// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "types.h"

namespace tokenspeed {

// Names a session whose pages are kept: 0 <= id < Retention::kMaxKept, free again once given up.
using SessionId = std::int32_t;
inline constexpr SessionId kNoSession = -1;

// How a session came back so far. It travels with the request that continues the session.
struct ReturnHistory {
  int returns = 0;
  int log_gap = 0;  // mean of log2(gap in ms) over the returns, in 1/256
};

struct Return {
  ReturnHistory history;
  SessionId kept = kNoSession;  // these pages were kept until now: drop their pin
  bool came_back() const noexcept { return history.returns > 0; }
};

struct SessionEnd {
  Namespace ns = 0;
  PageKey leaf = 0;  // of the last full block of prompt and answer
  int pages = 0;     // of the whole path, in the unit of Retention's pool_pages
  std::int64_t now_ms = 0;
  ReturnHistory history;  // what continue_session said when the request was admitted
};

// Finds agents without any id, and says whose pages to keep longer than least-recently-used order
// would. The leaf of a finished request is the session: a prompt that runs through a remembered
// leaf continues it. A session that never came back is only remembered; one that did is kept.
//
// Which to give up: a session is expected back after its usual gap, and one that has been idle
// for longer than that stays away about as long again, which is what heavy tails do. So the
// worst is the one with the largest max(usual gap, idle time), and nothing else is assumed about
// how gaps are distributed. The usual gap is a geometric mean: one long pause hardly moves it.
//
// Kept pages are out of the LRU list; the owner of the tree pins them under the session's id:
//   admission   once the hit is pinned, before any page is taken: continue_session; its `kept`,
//               if any, is forgotten here: drop that pin
//   end         end_session; pin under the id unless kNoSession; then, while to_give_up names
//               one: drop its pin and give_up
//   shortage    once the LRU list is empty: drop the pin of worst, and give_up
//
// A session given up or never kept is remembered as a ghost, so that its return is noticed even
// after its pages are gone. All tables are bounded and allocated once. Nothing depends on the
// value of a key: ties go to the session that ended first. A key is taken for its content, so
// give it whole: keys cut to few bits make returns out of collisions.
class Retention {
 public:
  static constexpr int kMaxKept = 512;

  explicit Retention(int pool_pages);

  // At an admission. `keys`: of the full blocks of the prompt. `now_ms`: when the request came,
  // rather than when it left the queue. Forgets the session that it continues.
  Return continue_session(Namespace ns, std::span<const PageKey> keys,
                          std::int64_t now_ms) noexcept;

  // At the end of a request whose blocks are in the tree. kNoSession: nothing to pin.
  SessionId end_session(const SessionEnd& end) noexcept;

  // A session to give up because too much is kept, in all or by one of several namespaces, or
  // because it is so long overdue that it has probably ended.
  SessionId to_give_up(std::int64_t now_ms) const noexcept;

  // The session to give up when pages run short. kNoSession: none is kept.
  SessionId worst(std::int64_t now_ms) const noexcept { return worst_of(kAnyTenant, now_ms); }

  void give_up(SessionId id) noexcept;

  // Forgets everything; the caller drops all pins.
  void clear() noexcept;

  int budget_pages() const noexcept { return budget_; }
  int kept_pages() const noexcept { return kept_pages_; }
  int kept_sessions() const noexcept { return num_kept_; }
  int remembered() const noexcept { return static_cast<int>(sessions_.size() - free_.size()); }

 private:
  using Index = std::int32_t;
  static constexpr Index kNone = -1;
  static constexpr Index kAnyTenant = -1;

  // A session that ended: a ghost in its tenant's list, the oldest first, or kept.
  struct Session {
    PageKey key = 0;
    std::int64_t ended_ms = 0;
    ReturnHistory history;
    Index tenant = kNone;
    SessionId kept = kNoSession;
    Index older = kNone;
    Index newer = kNone;
  };

  // What deciding about a kept session needs; `session` is kNone in a free entry.
  struct Kept {
    std::int64_t ended_ms = 0;
    std::int64_t gap_ms = 0;
    std::uint64_t sequence = 0;
    int pages = 0;
    Index tenant = kNone;
    Index session = kNone;
    std::int64_t wait_ms(std::int64_t now_ms) const noexcept;
    bool overdue(std::int64_t now_ms) const noexcept;
  };

  // A namespace. `returns` and `log_gap` as in ReturnHistory, over all its sessions.
  struct Tenant {
    ReturnHistory history;
    std::uint64_t last_used = 0;
    int kept_sessions = 0;
    int kept_pages = 0;
    int ghosts = 0;
    Index oldest = kNone;
    Index newest = kNone;
  };

  // From a key to a session: open addressing, no key twice.
  class KeyIndex {
   public:
    explicit KeyIndex(int capacity);
    Index find(PageKey key) const noexcept;
    void insert(PageKey key, Index session) noexcept;
    void erase(PageKey key) noexcept;
    void clear() noexcept;

   private:
    struct Entry {
      PageKey key = 0;
      Index session = kNone;
    };
    std::size_t home(PageKey key) const noexcept;
    std::size_t slot_of(PageKey key) const noexcept;  // where it is, or would be put
    std::vector<Entry> entries_;
  };

  Session& at(Index session) noexcept { return sessions_[static_cast<std::size_t>(session)]; }
  Tenant& tenant_at(Index tenant) noexcept { return tenants_[static_cast<std::size_t>(tenant)]; }
  Kept& kept_at(SessionId id) noexcept { return kept_[static_cast<std::size_t>(id)]; }

  Index find_tenant(Namespace ns) const noexcept;
  Index use_tenant(Namespace ns) noexcept;
  Index replaceable_tenant() const noexcept;
  void forget_oldest_ghost() noexcept;
  void forget(Index session) noexcept;
  void append_ghost(Index session) noexcept;
  void remove_ghost(Index session) noexcept;
  std::int64_t usual_gap_ms(const Session& session) const noexcept;
  bool worth_keeping(const Kept& candidate, std::int64_t now_ms) const noexcept;
  SessionId keep(const Kept& candidate) noexcept;
  void unkeep(SessionId id) noexcept;
  int tenant_limit(bool shared) const noexcept { return shared ? budget_ / 2 : budget_; }
  SessionId worst_of(Index tenant, std::int64_t now_ms) const noexcept;
  SessionId first_overdue(std::int64_t now_ms) const noexcept;

  int budget_;  // pages
  int kept_pages_ = 0;
  int num_kept_ = 0;
  int num_holders_ = 0;  // tenants that hold kept sessions
  std::uint64_t sequence_ = 0;
  std::vector<Session> sessions_;
  std::vector<Index> free_;
  std::vector<Kept> kept_;
  std::vector<SessionId> free_kept_;
  std::vector<Namespace> namespaces_;  // of tenants_, apart so that a search reads little
  std::vector<Tenant> tenants_;
  KeyIndex index_;
};

}  // namespace tokenspeed
