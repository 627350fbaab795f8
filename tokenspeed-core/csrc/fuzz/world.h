// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "fuzz/device.h"
#include "fuzz/kv_event_mirror.h"
#include "fuzz/random.h"
#include "fuzz/rank.h"

namespace tokenspeed::fuzz {

// How the rows of a step go.
struct Fate {
  int unlucky_row = -1;
  Luck luck = Luck::GOOD;   // of that row
  int accept_percent = 60;  // of drafts that the device makes
};

// Rows with drafts that were given, by how many of them were right.
struct Verified {
  unsigned long long all = 0;
  unsigned long long some = 0;
  unsigned long long none = 0;

  void add(int drafts, int right) noexcept {
    (right == drafts ? all : right > 0 ? some : none) += 1;
  }
  Verified& operator+=(const Verified& other) noexcept {
    all += other.all;
    some += other.some;
    none += other.none;
    return *this;
  }
};

// One small deployment: ranks that must agree, a device, and clients. Every message checks its
// answer, and after it what must always hold; what does not is thrown as a Failure.
class World {
 public:
  World(const Config& config, std::uint64_t seed, int num_ranks, bool verbose);

  // Messages.
  bool submit(const Question& question);  // true if accepted
  void submit_again(RequestId id);        // an open one
  void abort(RequestId id);
  void abort_unknown();
  // Guesses at the tokens behind those that the client has, for the next plan.
  void give_drafts(RequestId id, const std::vector<TokenId>& drafts);
  void give_drafts_wrongly(RequestId id);
  PlanSummary plan(int ms_later, const Fate& fate);
  void commit();  // the oldest step in flight
  void commit_wrong_step();
  void commit_wrong_shape();
  void ack(TransferId transfer, bool ok);  // one in flight
  void ack_without_effect(TransferId transfer);
  void reset();
  void exchange_digests();

  // Whatever is open ends, in a bounded number of steps, with nothing but plans, commits and acks.
  void run_to_idle();

  int messages() const noexcept { return messages_; }
  std::int64_t now_ms() const noexcept { return now_ms_; }
  std::int64_t num_plans() const noexcept { return last_step_ + 1; }
  int in_flight() const noexcept { return static_cast<int>(in_flight_.size()); }
  const std::map<TransferId, std::int64_t>& transfers() const noexcept {
    return device_.transfers();
  }
  bool is_load(TransferId transfer) const { return device_.is_load(transfer); }
  const std::vector<TransferId>& ended_transfers() const noexcept { return ended_transfers_; }
  int num_clients() const noexcept { return static_cast<int>(clients_.size()); }
  bool is_open(RequestId id) const { return client(id).finish == Finish::NONE; }
  int num_open() const noexcept;
  Truth& truth(RequestId id) { return client(id).computation.truth; }
  int received(RequestId id) const { return client(id).received; }
  const Verified& verified() const noexcept { return verified_; }
  const Counters& counters() const noexcept { return ranks_.front().scheduler.counters(); }
  bool is_idle() const noexcept { return !ranks_.front().scheduler.has_work(); }

  // Equal for states that differ in nothing but names: step, slot, page and transfer numbers.
  std::uint64_t fingerprint();

 private:
  struct Client {
    explicit Client(Question question) : computation(std::move(question)) {}
    Computation computation;
    int received = 0;  // tokens of the answer
    Finish finish = Finish::NONE;
    std::vector<TokenId> drafts;   // given last
    std::int64_t drafts_for = -1;  // the plan that they are for
  };
  struct Flight {  // a planned step whose results are not committed
    std::int64_t step = 0;
    std::vector<RequestId> requests;
    std::vector<std::int32_t> kv_lens;
    std::vector<std::int32_t> counts;
    std::vector<TokenId> tokens;
    std::vector<std::uint8_t> failed;
  };

  Submission submission_of(const Question& question) const;
  void check_submit(const Question& question, const SubmitResult& result) const;
  void check_rows(const PlanSummary& plan);
  void check_inputs(const PlanSummary& plan);
  void check_blocked(const PlanSummary& plan);
  void check_tables(const PlanSummary& plan);
  void execute(const PlanSummary& plan, const Fate& fate);
  bool has_row_in_flight(RequestId id) const;
  bool has_given_drafts(RequestId id, std::int64_t step) const;
  void require_commit_refused(const Flight& flight);
  void take_updates();
  void hear(const UpdateColumns& updates, std::size_t i);
  void take_kv_events();
  void check_after();
  void begin_message(const char* name, std::uint64_t detail = 0);
  Scheduler& first() noexcept { return ranks_.front().scheduler; }
  Client& client(RequestId id) { return clients_[static_cast<std::size_t>(id - 1)]; }
  const Client& client(RequestId id) const { return clients_[static_cast<std::size_t>(id - 1)]; }

  Config config_;
  Random random_;
  bool verbose_;
  int messages_ = 0;
  std::deque<Rank> ranks_;
  Device device_;
  std::deque<Client> clients_;  // request i is clients_[i - 1]
  std::deque<Flight> in_flight_;
  std::vector<TransferId> ended_transfers_;
  KvEventMirror mirror_;
  Verified verified_;
  std::int64_t now_ms_ = 0;
  std::int64_t last_step_ = -1;
  std::uint64_t last_digest_ = 0;
};

}  // namespace tokenspeed::fuzz
