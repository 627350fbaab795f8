// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
//
// Tries every order of messages on small deployments, by replay: a state is the messages that led
// to it, and states with one fingerprint are one. In every state that is reached, everything that
// World checks holds, and plans, commits and acks alone bring it to rest.
//
//   tokenspeed_explore [--most-states 30000]     per scenario
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <unordered_set>
#include <vector>

#include "fuzz/scenarios.h"

namespace tokenspeed::fuzz {
namespace {

enum class Kind : unsigned char {
  SUBMIT,
  ABORT,
  PLAN,
  PLAN_FAILING,
  PLAN_REJECTING,
  PLAN_LATER,
  GIVE_RIGHT,
  GIVE_HALF_RIGHT,
  COMMIT,
  ACK,
  ACK_FAILING,
  RESET
};

struct Message {
  Kind kind;
  unsigned char which = 0;  // request, row, or place of the transfer among those in flight
};
using Path = std::vector<Message>;

TransferId transfer_at(const World& world, int place) {
  auto it = world.transfers().begin();
  std::advance(it, place);
  return it->first;
}

// The next two tokens of a request; the second may be another one.
std::vector<TokenId> drafts_of(World& world, RequestId id, bool right) {
  Truth& truth = world.truth(id);
  const int known = truth.prompt_size() + world.received(id);
  const TokenId second = truth.token(known + 1);
  return {truth.token(known), right ? second : (second + 1) % kVocabulary};
}

void send(World& world, const Scenario& scenario, Message message) {
  switch (message.kind) {
    case Kind::SUBMIT: {
      Question question = scenario.questions[message.which];
      question.id = static_cast<RequestId>(world.num_clients() + 1);
      require(world.submit(question), "a question was refused");
      break;
    }
    case Kind::ABORT:
      world.abort(message.which);
      break;
    case Kind::PLAN:
      world.plan(0, {.accept_percent = 100});
      break;
    case Kind::PLAN_FAILING:
      world.plan(0, {message.which, Luck::FAILS, 100});
      break;
    case Kind::PLAN_REJECTING:
      world.plan(0, {.accept_percent = 0});
      break;
    case Kind::PLAN_LATER:
      world.plan(1, {.accept_percent = 100});
      break;
    case Kind::GIVE_RIGHT:
    case Kind::GIVE_HALF_RIGHT:
      world.give_drafts(message.which,
                        drafts_of(world, message.which, message.kind == Kind::GIVE_RIGHT));
      break;
    case Kind::COMMIT:
      world.commit();
      break;
    case Kind::ACK:
      world.ack(transfer_at(world, message.which), true);
      break;
    case Kind::ACK_FAILING:
      world.ack(transfer_at(world, message.which), false);
      break;
    case Kind::RESET:
      world.reset();
      break;
  }
}

std::unique_ptr<World> replay(const Scenario& scenario, const Path& path, bool verbose = false) {
  auto world = std::make_unique<World>(scenario.config, 0, 1, verbose);
  for (const Message message : path) {
    send(*world, scenario, message);
  }
  return world;
}

bool was_submitted(int question, const Path& path) {
  return std::any_of(path.begin(), path.end(), [question](const Message& message) {
    return message.kind == Kind::SUBMIT && message.which == question;
  });
}

Path possible(const Scenario& scenario, const Path& path, const World& world) {
  Path all;
  const auto add = [&](Kind kind, int which = 0) {
    all.push_back({kind, static_cast<unsigned char>(which)});
  };
  for (int i = 0; i < static_cast<int>(scenario.questions.size()); ++i) {
    if (!was_submitted(i, path)) add(Kind::SUBMIT, i);
  }
  for (RequestId id = 1; scenario.aborts && id <= static_cast<RequestId>(world.num_clients());
       ++id) {
    if (world.is_open(id)) add(Kind::ABORT, static_cast<int>(id));
  }
  for (RequestId id = 1; scenario.given_drafts && id <= static_cast<RequestId>(world.num_clients());
       ++id) {
    if (!world.is_open(id)) continue;
    add(Kind::GIVE_RIGHT, static_cast<int>(id));
    add(Kind::GIVE_HALF_RIGHT, static_cast<int>(id));
  }
  if (world.in_flight() <= scenario.depth) {
    add(Kind::PLAN);
    for (int row = 0; scenario.failing_rows && row < scenario.config.max_seqs; ++row) {
      add(Kind::PLAN_FAILING, row);
    }
    if (scenario.rejected_drafts) add(Kind::PLAN_REJECTING);
    if (scenario.time_passes) add(Kind::PLAN_LATER);
  }
  if (world.in_flight() > 0) add(Kind::COMMIT);
  for (int i = 0; i < static_cast<int>(world.transfers().size()); ++i) {
    add(Kind::ACK, i);
    if (scenario.failing_acks) add(Kind::ACK_FAILING, i);
  }
  if (scenario.resets) add(Kind::RESET);
  return all;
}

struct Explored {
  long long states = 0;
  long long steps = 0;  // pairs of a state and a message
  bool complete = true;
};

// Breadth first, so that a failure comes with a shortest path to it.
class Explorer {
 public:
  Explorer(const Scenario& scenario, long long most_states)
      : scenario_(scenario), most_states_(most_states) {}

  Explored run() {
    visit({});
    while (!open_.empty()) {
      const Path path = std::move(open_.front());
      open_.pop_front();
      for (const Message message : possible(scenario_, path, *replay(scenario_, path))) {
        if (explored_.states >= most_states_) {
          explored_.complete = false;
          return explored_;
        }
        Path longer = path;
        longer.push_back(message);
        explored_.steps += 1;
        visit(std::move(longer));
      }
    }
    return explored_;
  }

  const Path& last() const noexcept { return last_; }

 private:
  void visit(Path path) {
    last_ = path;
    const std::unique_ptr<World> world = replay(scenario_, path);
    if (!seen_.insert(world->fingerprint()).second) {
      return;
    }
    explored_.states += 1;
    world->run_to_idle();
    open_.push_back(std::move(path));
  }

  const Scenario& scenario_;
  long long most_states_;
  Explored explored_;
  Path last_;
  std::deque<Path> open_;
  std::unordered_set<std::uint64_t> seen_;
};

bool explore(const Scenario& scenario, long long most_states) {
  Explorer explorer(scenario, most_states);
  try {
    const Explored explored = explorer.run();
    std::printf("%8lld states %9lld steps  %-12s %s\n", explored.states, explored.steps,
                explored.complete ? "complete" : "cut short", scenario.name);
    std::fflush(stdout);
    return true;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "FAILED in \"%s\": %s; the messages:\n", scenario.name, failure.what());
    try {
      replay(scenario, explorer.last(), true)->run_to_idle();
    } catch (const std::exception&) {
    }
    return false;
  }
}

}  // namespace
}  // namespace tokenspeed::fuzz

int main(int argc, char** argv) {
  long long most_states = 30000;
  if (argc == 3 && std::strcmp(argv[1], "--most-states") == 0) {
    most_states = std::atoll(argv[2]);
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: %s [--most-states n]\n", argv[0]);
    return 2;
  }
  bool ok = true;
  for (const auto& scenario : tokenspeed::fuzz::scenarios()) {
    ok &= tokenspeed::fuzz::explore(scenario, most_states);
  }
  return ok ? 0 : 1;
}
