// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "fuzz/world.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <stdexcept>
#include <string>

#include "fuzz/failure.h"

namespace tokenspeed::fuzz {
namespace {

// Runs `call`, which breaks the interface and must be refused.
template <class Error, class F>
void require_refused(F&& call, const char* what) {
  try {
    call();
  } catch (const Error&) {
    return;
  }
  throw Failure(what);
}

}  // namespace

World::World(const Config& config, std::uint64_t seed, int num_ranks, bool verbose)
    : config_(config),
      random_(seed),
      verbose_(verbose),
      device_(config),
      mirror_(Layout(config.groups).block_size()) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    Config own = config;
    own.hash_seed = static_cast<std::uint64_t>(rank);  // no plan may depend on it
    ranks_.emplace_back(own);
  }
}

void World::begin_message(const char* name, std::uint64_t detail) {
  ++messages_;
  if (verbose_) {
    std::printf("%6d %s %llu\n", messages_, name, static_cast<unsigned long long>(detail));
    std::fflush(stdout);
  }
}

// -- Submit and abort -----------------------------------------------------------------------------

Submission World::submission_of(const Question& question) const {
  Submission submission;
  submission.id = question.id;
  submission.tokens = question.prompt;
  submission.max_new_tokens = question.max_new_tokens;
  submission.stop_ids = question.stop_ids;
  submission.ns = question.ns;
  submission.priority = question.priority;
  submission.draft_tokens = question.draft_tokens;
  submission.deadline_ms = question.deadline_ms;
  submission.now_ms = now_ms_;
  return submission;
}

bool World::submit(const Question& question) {
  begin_message("submit", question.id);
  const SubmitResult result = first().submit(submission_of(question));
  for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
    const SubmitResult other = ranks_[rank].scheduler.submit(submission_of(question));
    require(other.rejection == result.rejection, "the ranks judge a submission differently");
  }
  check_submit(question, result);
  const bool accepted = result.rejection == Rejection::ACCEPTED;
  if (accepted) {
    require(question.id == clients_.size() + 1, "request ids count up");
    clients_.emplace_back(question);
  }
  check_after();
  return accepted;
}

void World::check_submit(const Question& question, const SubmitResult& result) const {
  const int length = static_cast<int>(question.prompt.size()) + question.max_new_tokens;
  const Rejection rejection = result.rejection;
  if (question.prompt.empty()) {
    require(rejection == Rejection::EMPTY_PROMPT, "an empty prompt is not refused as such");
  } else if (length > config_.max_model_len) {
    require(rejection == Rejection::TOO_LONG && result.needed == length &&
                result.available == config_.max_model_len,
            "a prompt that is too long is not refused as such");
  } else {
    require(rejection == Rejection::ACCEPTED || rejection == Rejection::NEVER_FITS,
            "a good submission is refused");
    require(rejection == Rejection::ACCEPTED ||
                (result.needed > result.available && result.available == config_.num_pages),
            "a refusal for want of pages whose numbers contradict it");
  }
}

void World::submit_again(RequestId id) {
  begin_message("submit again", id);
  for (Rank& rank : ranks_) {
    const Submission submission = submission_of(truth(id).question());
    require(rank.scheduler.submit(submission).rejection == Rejection::DUPLICATE_ID,
            "a duplicate id is not refused");
  }
  check_after();
}

void World::abort(RequestId id) {
  begin_message("abort", id);
  const bool open = is_open(id);
  for (Rank& rank : ranks_) {
    require(rank.scheduler.abort(id) == open, "an abort is answered wrongly");
  }
  take_updates();
  require(!is_open(id), "an aborted request goes on");
  check_after();
}

void World::abort_unknown() {
  begin_message("abort unknown");
  for (Rank& rank : ranks_) {
    require(!rank.scheduler.abort(clients_.size() + 1000), "an unknown request was aborted");
  }
  check_after();
}

// -- Drafts ---------------------------------------------------------------------------------------

void World::give_drafts(RequestId id, const std::vector<TokenId>& drafts) {
  begin_message("give drafts", id);
  const bool known = id >= 1 && id <= clients_.size() && is_open(id);
  for (Rank& rank : ranks_) {
    require(rank.scheduler.set_drafts(id, drafts) == known, "drafts are answered wrongly");
  }
  if (known) {
    client(id).drafts = drafts;
    client(id).drafts_for = num_plans();
  }
  check_after();
}

// More of them than a row has room for, or one that is no token: refused, and those before stay.
void World::give_drafts_wrongly(RequestId id) {
  begin_message("give drafts wrongly", id);
  const std::vector<TokenId> many(static_cast<std::size_t>(config_.max_row_tokens), 0);
  for (Rank& rank : ranks_) {
    for (const std::vector<TokenId>& drafts : {many, std::vector<TokenId>{-1}}) {
      require_refused<std::invalid_argument>([&] { rank.scheduler.set_drafts(id, drafts); },
                                             "drafts that break the interface were taken");
    }
  }
  check_after();
}

bool World::has_row_in_flight(RequestId id) const {
  return std::any_of(in_flight_.begin(), in_flight_.end(), [id](const Flight& flight) {
    return std::find(flight.requests.begin(), flight.requests.end(), id) != flight.requests.end();
  });
}

// Whether a decode row of this plan has the drafts that were given. They follow the tokens that
// are committed: with a row in flight, they would stand in the wrong place.
bool World::has_given_drafts(RequestId id, std::int64_t step) const {
  return client(id).drafts_for == step && !has_row_in_flight(id);
}

// -- Plan -----------------------------------------------------------------------------------------

PlanSummary World::plan(int ms_later, const Fate& fate) {
  now_ms_ += ms_later;
  begin_message("plan", static_cast<std::uint64_t>(now_ms_));
  const PlanSummary plan = ranks_.front().plan(now_ms_);
  for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
    require(ranks_[rank].plan(now_ms_).digest == plan.digest, "the ranks' plans differ");
  }
  require(plan.step > last_step_, "steps do not count up");
  last_step_ = plan.step;
  last_digest_ = plan.digest;
  take_updates();
  check_rows(plan);
  check_inputs(plan);
  check_blocked(plan);
  device_.begin_step(ranks_.front().arrays, plan);
  check_tables(plan);
  execute(plan, fate);
  check_after();
  return plan;
}

void World::check_rows(const PlanSummary& plan) {
  const Arrays& a = ranks_[0].arrays;
  require(plan.num_rows <= config_.max_seqs && plan.num_tokens <= config_.max_step_tokens,
          "a step is larger than its bounds");
  int emits = 0;
  std::set<SlotId> slots;
  for (int i = 0; i < plan.num_rows; ++i) {
    const auto r = static_cast<std::size_t>(i);
    const int count = a.row_query_start[r + 1] - a.row_query_start[r];
    const bool decodes = (a.row_flags[r] & DECODE) != 0;
    emits += decodes ? count : (a.row_flags[r] & EMITS) != 0 ? 1 : 0;
    require(decodes == (i < plan.num_decode_rows), "decode rows do not stand first");
    require(count >= 1 && (!decodes || count <= config_.max_row_tokens), "a row's length is wrong");
    require(!decodes || (a.row_flags[r] & EMITS) != 0, "a decode row emits nothing");
    require(slots.insert(a.row_slot[r]).second, "a slot has two rows");
    require(a.row_request[r] >= 1 && a.row_request[r] <= clients_.size() &&
                client(a.row_request[r]).finish == Finish::NONE,
            "a row of a request that is over");
  }
  require(emits == plan.num_emits, "num_emits is wrong");
  require(plan.num_rows == 0 || a.row_query_start[0] == 0, "the first row does not start at 0");
  require(a.row_query_start[static_cast<std::size_t>(plan.num_rows)] == plan.num_tokens,
          "num_tokens is wrong");
}

// A decode row of a request whose tokens are all known here has its last token and the drafts that
// were given, from the first on; another one has nothing, for the device knows.
void World::check_inputs(const PlanSummary& plan) {
  const Arrays& a = ranks_[0].arrays;
  for (int row = 0; row < plan.num_decode_rows; ++row) {
    const auto r = static_cast<std::size_t>(row);
    const RequestId id = a.row_request[r];
    const bool given = has_given_drafts(id, plan.step);
    const Client& it = client(id);
    Truth& its = truth(id);
    const auto begin = static_cast<std::size_t>(a.row_query_start[r]);
    const auto drafts = static_cast<std::size_t>(a.row_query_start[r + 1]) - begin - 1;
    const auto asked = static_cast<std::size_t>(its.question().draft_tokens);
    require(drafts <= (given ? it.drafts.size() : asked), "more drafts than were asked for");
    const TokenId last = has_row_in_flight(id) ? 0 : its.token(its.prompt_size() + it.received - 1);
    require(a.token_ids[begin] == last, "a decode row does not begin with the last token");
    for (std::size_t i = 0; i < drafts; ++i) {
      require(a.token_ids[begin + 1 + i] == (given ? it.drafts[i] : 0),
              "a row's drafts are not those that were given");
    }
  }
}

// A plan without rows says why, the reason is true, and a plan that waits for nothing goes on.
void World::check_blocked(const PlanSummary& plan) {
  require((plan.blocked == Blocked::NO) == (plan.num_rows > 0), "blocked, with rows, or idle");
  require(plan.blocked != Blocked::IDLE || num_open() == 0, "IDLE with open requests");
  require(plan.blocked != Blocked::COMMIT || !in_flight_.empty(), "COMMIT with no step in flight");
  const int moves = plan.num_loads + plan.num_stores;
  require(plan.blocked != Blocked::TRANSFER || !transfers().empty() || moves > 0,
          "TRANSFER with no transfer in flight");
  const bool waits = !in_flight_.empty() || !transfers().empty();
  require(waits || plan.num_rows + moves > 0 || num_open() == 0,
          "a plan does nothing and waits for nothing",
          "blocked " + std::to_string(static_cast<int>(plan.blocked)));
}

void World::check_tables(const PlanSummary& plan) {
  const Arrays& a = ranks_[0].arrays;
  for (std::size_t r = 0; r < static_cast<std::size_t>(plan.num_rows); ++r) {
    for (int g = 0; g < a.num_groups; ++g) {
      device_.check_table(a.row_slot[r], g, first().page_table(a.row_request[r], g));
    }
  }
}

void World::execute(const PlanSummary& plan, const Fate& fate) {
  const Arrays& a = ranks_.front().arrays;
  Flight flight;
  flight.step = plan.step;
  const auto width = static_cast<std::size_t>(config_.max_row_tokens);
  for (int row = 0; row < plan.num_rows; ++row) {
    const auto r = static_cast<std::size_t>(row);
    const RequestId id = a.row_request[r];
    RowOutcome outcome = device_.run_row(
        a, row, client(id).computation, row == fate.unlucky_row ? fate.luck : Luck::GOOD,
        {has_given_drafts(id, plan.step), fate.accept_percent}, random_);
    const int drafts = a.row_query_start[r + 1] - a.row_query_start[r] - 1;
    if (row < plan.num_decode_rows && drafts > 0 && has_given_drafts(id, plan.step)) {
      verified_.add(drafts, static_cast<int>(outcome.tokens.size()) - 1);
    }
    flight.requests.push_back(id);
    flight.kv_lens.push_back(a.row_kv_len[r]);
    flight.failed.push_back(outcome.failed ? 1 : 0);
    flight.counts.push_back(outcome.failed ? 0 : static_cast<int>(outcome.tokens.size()));
    outcome.tokens.resize(width, 0);
    flight.tokens.insert(flight.tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
  }
  if (plan.num_rows > 0) {
    in_flight_.push_back(std::move(flight));
  }
}

// -- Commit and ack -------------------------------------------------------------------------------

void World::commit() {
  const Flight flight = std::move(in_flight_.front());
  in_flight_.pop_front();
  begin_message("commit", static_cast<std::uint64_t>(flight.step));
  const std::int64_t elapsed_us = random_.between(0, 4000);
  for (Rank& rank : ranks_) {
    rank.scheduler.commit(flight.step, {flight.counts, flight.tokens, flight.failed, elapsed_us});
  }
  device_.committed(flight.step);
  take_updates();
  check_after();
}

void World::commit_wrong_step() {
  begin_message("commit a wrong step");
  Flight flight = in_flight_.empty() ? Flight{} : in_flight_.front();
  flight.step = last_step_ + 1000;
  require_commit_refused(flight);
}

void World::commit_wrong_shape() {
  begin_message("commit results of a wrong shape");
  Flight flight = in_flight_.front();
  flight.counts.push_back(0);
  require_commit_refused(flight);
}

void World::require_commit_refused(const Flight& flight) {
  for (Rank& rank : ranks_) {
    require_refused<std::invalid_argument>(
        [&] { rank.scheduler.commit(flight.step, {flight.counts, flight.tokens, flight.failed}); },
        "a commit of the wrong step or shape was taken");
  }
  check_after();
}

void World::ack(TransferId transfer, bool ok) {
  begin_message(ok ? "ack" : "ack of a failure", transfer);
  device_.end_transfer(transfer, ok);
  for (Rank& rank : ranks_) {
    require(rank.scheduler.ack(transfer, ok), "the ack of a transfer in flight is not known");
  }
  ended_transfers_.push_back(transfer);
  take_updates();
  check_after();
}

void World::ack_without_effect(TransferId transfer) {
  begin_message("ack late or unknown", transfer);
  for (Rank& rank : ranks_) {
    require(!rank.scheduler.ack(transfer, true), "a late, duplicate or unknown ack had an effect");
  }
  check_after();
}

void World::reset() {
  begin_message("reset");
  const bool idle = is_idle();
  for (Rank& rank : ranks_) {
    require(rank.scheduler.reset_prefix_cache() == idle, "a reset is answered wrongly");
  }
  take_kv_events();
  const Ledger ledger = first().ledger();
  require(!idle || (ledger.cached == 0 && ledger.host_cached == 0 && mirror_.empty()),
          "something is cached after a reset");
  check_after();
}

void World::exchange_digests() {
  begin_message("digests", last_digest_);
  for (Rank& rank : ranks_) {
    rank.scheduler.check_digest(last_step_, last_digest_);
    require_refused<std::runtime_error>(
        [&] { rank.scheduler.check_digest(last_step_, last_digest_ ^ 1); },
        "a digest that differs was taken");
  }
  check_after();
}

void World::run_to_idle() {
  int budget = 400 + 200 * num_open();
  while (!is_idle()) {
    require(--budget > 0, "requests do not end", first().ledger().detail);
    const bool has_rows = plan(1, Fate{}).num_rows > 0;
    if (!has_rows || in_flight() > 1) {
      if (in_flight() > 0) commit();
      if (!transfers().empty()) ack(transfers().begin()->first, true);
    }
  }
  require(num_open() == 0, "a request's end was never reported");
  const Ledger ledger = first().ledger();
  require(ledger.active == 0 && ledger.in_transfer == 0 && ledger.host_in_transfer == 0,
          "pages are in use when nothing runs", ledger.detail);
  require(first().take_rejected_events().empty(), "the transition table rejected an event");
}

// -- What the clients hear, and what always holds -------------------------------------------------

void World::take_updates() {
  const UpdateColumns updates = first().take_updates();
  for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
    require(ranks_[rank].scheduler.take_updates().tokens == updates.tokens,
            "the ranks report different tokens");
  }
  for (std::size_t i = 0; i < updates.request.size(); ++i) {
    require(updates.request[i] >= 1 && updates.request[i] <= clients_.size(),
            "an update of a request that nobody made");
    hear(updates, i);
  }
}

void World::hear(const UpdateColumns& updates, std::size_t i) {
  Client& it = client(updates.request[i]);
  Truth& truth = it.computation.truth;
  require(it.finish == Finish::NONE, "an update after the end");
  Finish due = it.received == 0 ? Finish::NONE : truth.finish_at(it.received - 1);
  for (auto t = updates.token_start[i]; t < updates.token_start[i + 1]; ++t) {
    require(due == Finish::NONE, "a token after the answer's last");
    require(updates.tokens[static_cast<std::size_t>(t)] ==
                truth.token(truth.prompt_size() + it.received),
            "a token that is not the answer's");
    due = truth.finish_at(it.received);
    it.received += 1;
  }
  it.finish = static_cast<Finish>(updates.finish[i]);
  const bool by_itself = it.finish == Finish::STOP || it.finish == Finish::LENGTH;
  require(!by_itself || it.finish == due, "a request ends for the wrong reason");
  require(due == Finish::NONE || it.finish == due, "a request does not end at its last token");
  require(it.finish != Finish::FAILED || it.computation.poisoned, "a good request failed");
  require(updates.stop_token[i] ==
              (it.finish == Finish::STOP ? truth.token(truth.prompt_size() + it.received - 1) : -1),
          "the stop token is wrong");
  require(updates.cached_tokens[i] >= 0 && updates.cached_tokens[i] < truth.prompt_size(),
          "cached_tokens is wrong");
}

void World::take_kv_events() {
  const KvEventColumns events = first().take_kv_events();
  for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
    ranks_[rank].scheduler.take_kv_events();
  }
  if (config_.hash_bits == 64) {  // below, block ids collide
    mirror_.read(events);
  }
}

int World::num_open() const noexcept {
  return static_cast<int>(std::count_if(clients_.begin(), clients_.end(), [](const Client& it) {
    return it.finish == Finish::NONE;
  }));
}

void World::check_after() {
  const Ledger ledger = first().ledger();
  require(ledger.balanced, "the ledger does not balance", ledger.detail);
  const Gauges gauges = first().gauges();
  require(gauges.free_pages == ledger.free && gauges.cached_pages == ledger.cached &&
              gauges.host_free_pages == ledger.host_free,
          "the gauges contradict the ledger", ledger.detail);
  require(gauges.transfers == static_cast<int>(transfers().size()),
          "a transfer is forgotten, or remembered too long");
  const int open = num_open();
  const int alive = gauges.running + gauges.waiting;
  require(gauges.loading <= gauges.running, "more are loading than are running");
  if (alive > open || open > alive + gauges.draining) {
    throw Failure("a request is lost: " + std::to_string(open) + " open, " + std::to_string(alive) +
                  " alive, " + std::to_string(gauges.draining) + " draining");
  }
  require(first().counters().rejected_events == 0, "the transition table rejected an event");
  if (random_.chance(10)) {
    take_kv_events();
  }
}

}  // namespace tokenspeed::fuzz
