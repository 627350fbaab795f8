// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "cache/retention.h"

using namespace tokenspeed;

namespace {

// Sessions by small numbers: a session's text is its number and a turn's key follows from both.
struct Agents {
  explicit Agents(int pool_pages) : retention(pool_pages) {}

  static PageKey key(int session, int turn) {
    return static_cast<PageKey>(session) * 1000 + static_cast<PageKey>(turn) + 1;
  }

  // A prompt that runs through the leaves of all turns before `turn`.
  Return arrive(int session, int turn, std::int64_t now_ms, Namespace ns = 0) {
    std::vector<PageKey> keys;
    for (int i = 0; i < turn; ++i) {
      keys.push_back(key(session, i));
    }
    keys.push_back(0x9999000 + key(session, turn));  // its new text
    const Return result = retention.continue_session(ns, keys, now_ms);
    history[session] = result.history;
    return result;
  }

  SessionId end(int session, int turn, std::int64_t now_ms, int pages = 10, Namespace ns = 0) {
    return retention.end_session({ns, key(session, turn), pages, now_ms, history[session]});
  }

  // A session that ends now for the second time, `gap_ms` after the first.
  SessionId seasoned(int session, std::int64_t gap_ms, std::int64_t now_ms, int pages = 10,
                     Namespace ns = 0) {
    history[session] = {};
    end(session, 0, now_ms - gap_ms, pages, ns);
    arrive(session, 1, now_ms, ns);
    return end(session, 1, now_ms, pages, ns);
  }

  int give_up_all_that_is_too_much(std::int64_t now_ms) {
    int given_up = 0;
    for (SessionId id; (id = retention.to_give_up(now_ms)) != kNoSession; ++given_up) {
      retention.give_up(id);
    }
    return given_up;
  }

  Retention retention;
  std::map<int, ReturnHistory> history;
};

}  // namespace

TEST_CASE("a session is kept once it came back, and only remembered before") {
  Agents agents(1000);
  CHECK_FALSE(agents.arrive(1, 0, 0).came_back());
  CHECK(agents.end(1, 0, 100) == kNoSession);
  CHECK(agents.retention.remembered() == 1);

  const Return first = agents.arrive(1, 1, 4100);
  CHECK(first.came_back());
  CHECK(first.kept == kNoSession);
  CHECK(agents.retention.remembered() == 0);
  const SessionId id = agents.end(1, 1, 5000);
  REQUIRE(id != kNoSession);
  CHECK(agents.retention.kept_pages() == 10);

  const Return second = agents.arrive(1, 2, 9000);
  CHECK(second.history.returns == 2);
  CHECK(second.kept == id);
  CHECK(agents.retention.kept_pages() == 0);
  CHECK(agents.retention.remembered() == 0);
}

TEST_CASE("a prompt continues the deepest leaf that it runs through, once, in its namespace") {
  Agents agents(1000);
  agents.end(1, 0, 0);
  agents.end(1, 2, 0);
  CHECK_FALSE(agents.arrive(1, 3, 10, 7).came_back());
  agents.end(5, 0, 0, 10, 7);  // the namespace is known now
  CHECK_FALSE(agents.arrive(1, 3, 10, 7).came_back());
  CHECK(agents.arrive(1, 3, 10).came_back());
  CHECK(agents.arrive(1, 2, 10).came_back());  // the leaf of turn 0: that of turn 2 is forgotten
  CHECK_FALSE(agents.arrive(1, 3, 10).came_back());
  CHECK(agents.retention.continue_session(0, {}, 10).history.returns == 0);
}

TEST_CASE("a return is noticed after its session was given up") {
  Agents agents(1000);
  const SessionId id = agents.seasoned(1, 1000, 5000);
  REQUIRE(id != kNoSession);
  agents.retention.give_up(id);
  CHECK(agents.retention.kept_sessions() == 0);
  const Return back = agents.arrive(1, 2, 6000);
  CHECK(back.history.returns == 2);
  CHECK(back.kept == kNoSession);
}

TEST_CASE("the worst is the one that stays away longest by its gaps and by now") {
  Agents agents(1000);
  const SessionId slow = agents.seasoned(1, 60'000, 100'000);
  const SessionId quick = agents.seasoned(2, 1000, 100'000);
  CHECK(agents.retention.worst(100'000) == slow);
  agents.retention.give_up(slow);
  const SessionId fresh = agents.seasoned(3, 20'000, 130'000);
  CHECK(agents.retention.worst(130'000) == quick);  // idle for 30 s, longer than the other's gap
  agents.retention.give_up(quick);
  CHECK(agents.retention.worst(130'000) == fresh);
  agents.retention.give_up(fresh);
  CHECK(agents.retention.worst(130'000) == kNoSession);
}

TEST_CASE("of equals the one that ended first goes first") {
  Agents agents(1000);
  const SessionId first = agents.seasoned(1, 1000, 50'000);
  const SessionId spare = agents.seasoned(2, 1000, 50'000);
  agents.retention.give_up(first);
  const SessionId reused = agents.seasoned(3, 1000, 50'000);
  CHECK(reused == first);  // a smaller id, and yet the later end
  CHECK(agents.retention.worst(90'000) == spare);
}

TEST_CASE("a usual gap is learned, and one long pause hardly moves it") {
  Agents agents(1000);
  std::int64_t now = 0;
  agents.end(1, 0, now);
  for (int turn = 1; turn <= 8; ++turn) {
    now += turn == 6 ? 3'600'000 : 2000;
    const Return back = agents.arrive(1, turn, now);
    REQUIRE(back.came_back());
    agents.end(1, turn, now);
  }
  const double log_gap = agents.history[1].log_gap / 256.0;
  CHECK(log_gap > 10.9);         // 2 s are 2^10.97 ms
  CHECK(log_gap < 10.97 + 1.5);  // the mean of all gaps would be 2^18.8 ms
}

TEST_CASE("a session with few returns leans on its namespace") {
  Agents agents(100'000);
  for (int session = 10; session < 40; ++session) {
    agents.seasoned(session, 1000, 1'000'000, 10, 1);
    agents.seasoned(session + 100, 100'000, 1'000'000, 10, 2);
  }
  for (SessionId id; (id = agents.retention.worst(1'000'000)) != kNoSession;) {
    agents.retention.give_up(id);
  }
  const SessionId among_quick = agents.seasoned(1, 8000, 1'000'000, 10, 1);
  const SessionId among_slow = agents.seasoned(2, 8000, 1'000'000, 10, 2);
  CHECK(agents.retention.worst(1'000'000) == among_slow);
  agents.retention.give_up(among_slow);
  CHECK(agents.retention.worst(1'000'000) == among_quick);
}

TEST_CASE("three quarters of the pool are kept at most, and who would go next is not kept") {
  Agents agents(100);
  CHECK(agents.retention.budget_pages() == 75);
  for (int session = 0; session < 7; ++session) {
    CHECK(agents.seasoned(session, 1000, 50'000) != kNoSession);
    CHECK(agents.give_up_all_that_is_too_much(50'000) == 0);
  }
  CHECK(agents.retention.kept_pages() == 70);
  CHECK(agents.seasoned(20, 40'000, 50'000) == kNoSession);  // slower than all others
  CHECK(agents.seasoned(21, 500, 50'000) != kNoSession);
  CHECK(agents.retention.kept_pages() == 80);
  CHECK(agents.give_up_all_that_is_too_much(50'000) == 1);
  CHECK(agents.retention.kept_pages() == 70);
  CHECK(agents.seasoned(22, 500, 50'000, 76) == kNoSession);  // larger than the budget
}

TEST_CASE("who never came back costs nobody anything") {
  Agents agents(100);
  for (int session = 0; session < 10'000; ++session) {
    agents.arrive(session, 0, session);
    CHECK(agents.end(session, 0, session) == kNoSession);
  }
  CHECK(agents.retention.kept_pages() == 0);
  CHECK(agents.retention.worst(10'000) == kNoSession);
}

TEST_CASE("of several namespaces none keeps more than half") {
  Agents agents(100);
  for (int session = 0; session < 7; ++session) {
    agents.seasoned(session, 1000, 50'000, 10, 1);
  }
  CHECK(agents.give_up_all_that_is_too_much(50'000) == 0);
  CHECK(agents.retention.kept_pages() == 70);  // alone
  CHECK(agents.seasoned(10, 30'000, 50'000, 10, 2) != kNoSession);
  CHECK(agents.give_up_all_that_is_too_much(50'000) == 4);
  CHECK(agents.retention.kept_pages() == 30 + 10);
  CHECK(agents.seasoned(11, 1000, 50'000, 38, 2) == kNoSession);  // more than half by itself
  CHECK(agents.seasoned(12, 1000, 50'000, 27, 2) != kNoSession);
  CHECK(agents.seasoned(13, 3'600'000, 50'000, 10, 2) == kNoSession);  // the worst of its own
  CHECK(agents.give_up_all_that_is_too_much(50'000) == 0);
  CHECK(agents.retention.kept_pages() == 30 + 37);
}

TEST_CASE("a namespace at its limit chooses among its own") {
  Agents agents(100);
  const SessionId slowest = agents.seasoned(1, 3'600'000, 50'000, 10, 1);
  for (int session = 10; session < 13; ++session) {
    CHECK(agents.seasoned(session, 1000, 50'000, 12, 2) != kNoSession);
  }
  CHECK(agents.seasoned(13, 100'000, 50'000, 12, 2) == kNoSession);
  CHECK(agents.seasoned(14, 100, 50'000, 12, 2) != kNoSession);
  CHECK(agents.retention.worst(50'000) == slowest);
  CHECK(agents.retention.to_give_up(50'000) != slowest);
}

TEST_CASE("a full table of kept sessions gives one up for the next") {
  Agents agents(100'000);
  for (int session = 0; session < 700; ++session) {
    CHECK(agents.seasoned(session, 100'000 - 100 * session, 50'000, 1) != kNoSession);
    agents.give_up_all_that_is_too_much(50'000);
  }
  CHECK(agents.retention.kept_sessions() == Retention::kMaxKept - 1);
}

TEST_CASE("a session that is long overdue is given up though there is room") {
  Agents agents(1000);
  const SessionId id = agents.seasoned(1, 1000, 50'000);
  CHECK(agents.retention.to_give_up(53'000) == kNoSession);
  CHECK(agents.retention.to_give_up(150'000) == id);
  agents.retention.give_up(id);
  CHECK(agents.retention.to_give_up(150'000) == kNoSession);
}

TEST_CASE("an end at a leaf that is remembered takes its place") {
  Agents agents(1000);
  agents.end(1, 0, 0);
  agents.end(1, 0, 500);
  CHECK(agents.retention.remembered() == 1);
  CHECK(agents.arrive(1, 1, 1500).history.log_gap < 10 * 256);  // 1 s, not 1.5
  const SessionId id = agents.seasoned(2, 1000, 10'000);
  REQUIRE(id != kNoSession);
  CHECK(agents.end(2, 1, 40'000) == kNoSession);  // its pages are pinned already
  CHECK(agents.retention.kept_pages() == 10);
  const Return back = agents.arrive(2, 2, 41'000);
  CHECK(back.kept == id);
  CHECK(agents.history[2].log_gap < 11 * 256);  // 1 s again, not 31
}

TEST_CASE("ghosts are bounded, and a flood in one namespace leaves the others their own") {
  Agents agents(100'000);
  for (int session = 0; session < 100; ++session) {
    agents.end(session, 0, 0, 10, 1);
  }
  for (int session = 1000; session < 21'000; ++session) {
    agents.end(session, 0, 10, 10, 2);
  }
  CHECK(agents.retention.remembered() == 4096);
  for (int session = 0; session < 100; ++session) {
    CHECK(agents.arrive(session, 1, 1000, 1).came_back());
  }
  CHECK_FALSE(agents.arrive(1000, 1, 1000, 2).came_back());
  CHECK(agents.arrive(20'999, 1, 1000, 2).came_back());
}

TEST_CASE("more namespaces than the table holds: the least recently used without kept goes") {
  Agents agents(100'000);
  CHECK(agents.seasoned(0, 1000, 5000, 10, 1) != kNoSession);
  for (int session = 1; session < 2000; ++session) {
    agents.end(session, 0, 5000, 10, 1000 + static_cast<Namespace>(session));
  }
  CHECK(agents.arrive(0, 2, 6000, 1).kept != kNoSession);
  CHECK_FALSE(agents.arrive(1, 1, 6000, 1001).came_back());
  CHECK(agents.arrive(1999, 1, 6000, 2999).came_back());
  for (int session = 3000; session < 3300; ++session) {  // all entries hold kept sessions
    agents.seasoned(session, 1000, 5000, 10, static_cast<Namespace>(session));
  }
  CHECK(agents.retention.kept_sessions() == 256);
}

TEST_CASE("a namespace in the place of another learns for itself") {
  Agents agents(100'000);
  const SessionId minute = agents.seasoned(0, 60'000, 5000, 10, 1);
  for (int session = 1; session < 300; ++session) {
    const auto ns = static_cast<Namespace>(session + 1000);
    agents.retention.give_up(agents.seasoned(session, 3'600'000, 5000, 10, ns));
  }
  CHECK(agents.seasoned(900, 16'000, 5000, 10, 5000) != kNoSession);
  CHECK(agents.retention.worst(5000) == minute);
}

TEST_CASE("clear forgets everything") {
  Agents agents(1000);
  agents.seasoned(1, 1000, 5000);
  agents.end(2, 0, 5000);
  agents.retention.clear();
  CHECK(agents.retention.remembered() == 0);
  CHECK(agents.retention.kept_pages() == 0);
  CHECK(agents.retention.worst(9000) == kNoSession);
  CHECK_FALSE(agents.arrive(1, 2, 6000).came_back());
  CHECK_FALSE(agents.arrive(2, 1, 6000).came_back());
}

namespace {

// Thousands of sessions at random; returns what was decided, in order, and checks the accounts
// against a plain copy of them. `scramble` changes every key, one to one.
std::vector<int> decisions(unsigned seed, int pool_pages, PageKey scramble) {
  Retention retention(pool_pages);
  std::minstd_rand random(seed);
  struct Kept {
    int pages;
    int session;
  };
  std::map<SessionId, Kept> kept;
  struct Agent {
    int turn = 0;
    ReturnHistory history;
    int pages = 0;
  };
  std::vector<Agent> agents(300);
  std::vector<int> log;
  std::int64_t now = 0;
  const auto key = [&](int session, int turn) {
    const auto name = static_cast<PageKey>(session) << 32 | static_cast<std::uint32_t>(turn);
    return (name * 0x9e3779b97f4a7c15) ^ scramble;
  };
  const auto give_up = [&](SessionId id) {
    REQUIRE(kept.erase(id) == 1);
    retention.give_up(id);
    log.push_back(-1 - id);
  };
  for (int i = 0; i < 8000; ++i) {
    now += random() % 50;
    const int session = static_cast<int>(random() % agents.size());
    Agent& agent = agents[static_cast<std::size_t>(session)];
    const Namespace ns = static_cast<Namespace>(session % 5);
    if (random() % 8 == 0) {
      agent.turn += 1000;  // another session altogether
    }
    std::vector<PageKey> keys{key(session, agent.turn), key(session, -2)};
    const Return back = retention.continue_session(ns, keys, now);
    if (back.kept != kNoSession) {
      REQUIRE(kept.at(back.kept).session == session);
      kept.erase(back.kept);
    }
    agent.turn += 1;
    const int pages = 1 + static_cast<int>(random() % 9);
    const SessionId id =
        retention.end_session({ns, key(session, agent.turn), pages, now, back.history});
    if (id != kNoSession) {
      REQUIRE(kept.emplace(id, Kept{pages, session}).second);
      REQUIRE(back.came_back());
    }
    for (SessionId next; (next = retention.to_give_up(now)) != kNoSession;) {
      give_up(next);
    }
    if (const SessionId worst = retention.worst(now); worst != kNoSession && random() % 50 == 0) {
      give_up(worst);
    }
    int pages_kept = 0;
    std::map<int, int> by_namespace;
    for (const auto& [kept_id, entry] : kept) {
      pages_kept += entry.pages;
      by_namespace[entry.session % 5] += entry.pages;
    }
    const bool within_half =
        by_namespace.size() < 2 ||
        std::all_of(
            by_namespace.begin(), by_namespace.end(),
            [&](const auto& held) { return held.second <= retention.budget_pages() / 2; });
    const bool balanced = within_half && pages_kept == retention.kept_pages() &&
                          static_cast<int>(kept.size()) == retention.kept_sessions() &&
                          pages_kept <= retention.budget_pages();
    REQUIRE(balanced);
    log.push_back(id);
    log.push_back(back.history.returns);
  }
  return log;
}

}  // namespace

TEST_CASE("the accounts balance over many sessions, and no decision depends on a key's value") {
  for (const int pool_pages : {4, 60, 400, 5000}) {
    const std::vector<int> once = decisions(1, pool_pages, 0);
    CHECK(once == decisions(1, pool_pages, 0xfeedfacecafebeef));
    CHECK(once != decisions(2, pool_pages, 0));
  }
}
