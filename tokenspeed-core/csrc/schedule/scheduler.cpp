// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/scheduler.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "schedule/capacity.h"

namespace tokenspeed {
namespace {

Config checked(const Config& config) {
  check(config);
  return config;
}

// A running request hands blocks to the host tier in batches: each batch costs a walk of its path.
constexpr int kStoreBatch = 16;

int prefill_tokens(const std::vector<fsm::RowRecord>& rows) noexcept {
  int tokens = 0;
  for (const fsm::RowRecord& row : rows) {
    tokens += row.decode ? 0 : row.count;
  }
  return tokens;
}

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

}  // namespace

Scheduler::Scheduler(const Config& config)
    : config_(checked(config)),
      layout_(config_.groups),
      hasher_(layout_.block_size(), config_.hash_bits, config_.hash_seed),
      cache_(config_, layout_, counters_),
      slots_(config_.max_seqs),
      transfers_(cache_, counters_, config_.max_seqs),
      roster_(config_.max_seqs),
      lifecycle_(roster_, {hasher_, cache_, transfers_, updates_, counters_}),
      growth_(cache_, transfers_, roster_, lifecycle_, updates_),
      rows_(cache_, growth_),
      admission_(config_, cache_, transfers_, slots_, roster_, lifecycle_, rows_, counters_),
      prefill_budget_(config_.max_step_tokens, config_.prefill_share,
                      static_cast<std::int64_t>(config_.itl_target_ms * 1000.0)),
      steps_(config_.max_seqs) {}

SubmitResult Scheduler::submit(const Submission& submission) {
  check_whole();
  const SubmitResult result = judge(submission);
  if (result.rejection == Rejection::ACCEPTED) {
    deadlines_.make_room(roster_.alive());
    deadlines_.add(roster_.add(make_request(submission)));
  }
  return result;
}

// What can never run is refused here, with the numbers, so that it cannot block the queue.
SubmitResult Scheduler::judge(const Submission& s) const {
  if (s.max_new_tokens < 1) {
    refuse("max_new_tokens must be at least 1, not " + std::to_string(s.max_new_tokens));
  }
  if (s.now_ms < 0 || s.now_ms > kMaxTimeMs) {
    refuse("now_ms must be in 0..2^53, not " + std::to_string(s.now_ms));
  }
  if (s.priority < -kMaxPriority || s.priority > kMaxPriority) {
    refuse("priority must be in -100..100, not " + std::to_string(s.priority));
  }
  if (s.draft_tokens < 0 || s.draft_tokens >= config_.max_row_tokens) {
    refuse("draft_tokens must be in 0..max_row_tokens - 1, not " + std::to_string(s.draft_tokens));
  }
  TokenId any_sign = 0;  // without a branch per token
  for (const TokenId token : s.tokens) {
    any_sign |= token;
  }
  if (any_sign < 0) {
    refuse("tokens: a token id is negative");
  }
  if (roster_.find(s.id) != nullptr) {
    return {Rejection::DUPLICATE_ID};
  }
  if (s.tokens.empty()) {
    return {Rejection::EMPTY_PROMPT};
  }
  const auto length = static_cast<std::int64_t>(s.tokens.size()) + s.max_new_tokens;
  if (length > config_.max_model_len) {
    return {Rejection::TOO_LONG, length, config_.max_model_len};
  }
  // The last sampled token is never an input, so its KV is never written.
  const long pages =
      peak_pages(layout_, static_cast<int>(length) - 1, config_.max_step_tokens);
  if (pages > config_.num_pages) {
    return {Rejection::NEVER_FITS, pages, config_.num_pages};
  }
  return {};
}

// Makes room for everything that the request can come to hold on the host, and hashes its prompt.
Request Scheduler::make_request(const Submission& s) const {
  Request request;
  request.id = s.id;
  request.ns = s.ns;
  request.submitted_ms = s.now_ms;
  request.deadline_ms = s.deadline_ms;
  request.turn.rank = s.now_ms - std::int64_t{s.priority} * config_.aging_ms;
  request.draft_tokens = s.draft_tokens;
  request.prompt_len = static_cast<int>(s.tokens.size());
  request.max_new_tokens = s.max_new_tokens;
  request.stop_ids.assign(s.stop_ids.begin(), s.stop_ids.end());
  const std::size_t length = s.tokens.size() + static_cast<std::size_t>(s.max_new_tokens);
  request.tokens.reserve(length);
  request.tokens.assign(s.tokens.begin(), s.tokens.end());
  if (config_.prefix_cache) {
    request.keys.reserve(length / static_cast<std::size_t>(layout_.block_size()));
    hasher_.extend(request.ns, request.tokens, request.keys);
  }
  return request;
}

bool Scheduler::abort(RequestId id) {
  Request* request = roster_.find(id);
  if (request == nullptr) {
    counters_.ignored_events += 1;  // late or unknown: legal
    return false;
  }
  updates_.make_room(1);
  lifecycle_.end(*request, fsm::Abort{});
  return true;
}

PlanSummary Scheduler::plan(std::int64_t now_ms, const PlanView& out) {
  check_whole();
  check_view(out);
  broken_ = true;
  StepRecord record = steps_.open(next_step_);
  cache_.set_time(now_ms);
  expire(now_ms);
  Batch batch(next_step_, layout_.num_groups(), out, record.rows);
  write_through(batch);
  const bool short_of_pages = add_decode_rows(batch);
  const int budget = add_prefill_rows(batch);
  if (!short_of_pages) {
    admission_.run(batch, budget);
  }
  PlanSummary summary = batch.finish();
  counters_.page_copies += summary.num_copies;
  digests_.add(next_step_, summary.digest);
  record.decode_rows = summary.num_decode_rows;
  record.prefill_tokens = prefill_tokens(record.rows);
  if (record.rows.empty()) {  // it has no results to wait for
    summary.blocked = why_blocked();
    steps_.recycle(std::move(record));
  } else {
    steps_.push(std::move(record));
  }
  next_step_ += 1;
  counters_.steps += 1;
  broken_ = false;
  return summary;
}

// In-flight steps and transfers end by themselves; anything else would be a stall.
Blocked Scheduler::why_blocked() const noexcept {
  if (!steps_.empty()) {
    return Blocked::COMMIT;
  }
  if (transfers_.in_flight() > 0) {
    return Blocked::TRANSFER;
  }
  return roster_.alive() == 0 ? Blocked::IDLE : Blocked::PAGES;
}

// What was published goes to the host tier too.
void Scheduler::write_through(Batch& batch) {
  if (!cache_.has_host_tier()) {
    return;
  }
  transfers_.store_retired(batch);
  for (Request* request : roster_.running()) {
    Reservation& reservation = *fsm::reservation_of(request->state);
    const bool due = reservation.published() - reservation.stored() >= kStoreBatch;
    if (due && batch.moves_left(Tier::HOST) >= layout_.width() && cache_.can_take_host_page()) {
      reservation.set_stored(transfers_.store(reservation.pin(), reservation.stored(), batch));
    }
  }
}

void Scheduler::check_whole() const {
  if (broken_) {
    throw std::logic_error("a plan was interrupted for lack of memory: restart the engine");
  }
}

void Scheduler::check_view(const PlanView& out) const {
  const auto rows = static_cast<std::size_t>(config_.max_seqs);
  const auto tokens = static_cast<std::size_t>(config_.max_step_tokens);
  if (out.row_request.size() != rows) {
    refuse("row_request: S is " + std::to_string(out.row_request.size()) + ", max_seqs is " +
           std::to_string(rows));
  }
  if (out.token_ids.size() != tokens) {
    refuse("token_ids: T is " + std::to_string(out.token_ids.size()) + ", max_step_tokens is " +
           std::to_string(tokens));
  }
  const auto deltas = static_cast<std::size_t>(longest_table(config_, layout_) + config_.max_seqs);
  const auto groups = layout_.groups().size();
  if (out.delta_slot.size() % groups != 0 || out.delta_slot.size() / groups < deltas) {
    refuse("delta_slot: D is " + std::to_string(out.delta_slot.size() / groups) +
           ", pages per request + max_seqs is " + std::to_string(deltas));
  }
  const auto copies = static_cast<std::size_t>(max_copies(config_, layout_));
  if (out.copy_source.size() < copies) {
    refuse("copy_source: C is " + std::to_string(out.copy_source.size()) + ", max_copies is " +
           std::to_string(copies));
  }
  const auto moves = static_cast<std::size_t>(max_transfer_pages(config_, layout_));
  if (std::min(out.store_source.size(), out.load_source.size()) < moves) {
    refuse("store_source, load_source: X is " + std::to_string(out.store_source.size()) +
           ", max_transfer_pages is " + std::to_string(moves));
  }
}

void Scheduler::expire(std::int64_t now_ms) {
  while (Request* request = deadlines_.pop_expired(now_ms)) {
    updates_.make_room(1);
    lifecycle_.end(*request, fsm::Expire{});
  }
}

// Every request that has its prompt planned and tokens to go gets one row, in the order of their
// turn. Returns whether pages ran short: then nobody is admitted in this step.
bool Scheduler::add_decode_rows(Batch& batch) {
  bool short_of_pages = false;
  const int spare = static_cast<int>(roster_.running().size()) * layout_.num_groups();
  // Retraction shortens the list, at or behind the row in hand.
  for (std::size_t i = 0; i < roster_.running().size(); ++i) {
    Request& request = *roster_.running()[i];
    if (request.has_row && request.prompt_planned() &&
        request.planned_outputs < request.max_new_tokens) {
      short_of_pages |= !rows_.add_decode(batch, request, drafts_for(batch, request), spare);
    }
  }
  return short_of_pages;
}

// Drafts take no query token that another running request needs.
int Scheduler::drafts_for(const Batch& batch, const Request& request) const noexcept {
  const int others = static_cast<int>(roster_.running().size()) - batch.num_decode_rows();
  const int left = request.max_new_tokens - request.planned_outputs - 1;
  const bool given = request.drafts_step == batch.step() && request.next_input_known();
  const int wanted = given ? static_cast<int>(request.drafts.size()) : request.draft_tokens;
  return std::max(0, std::min({wanted, left, batch.tokens_left() - others}));
}

bool Scheduler::set_drafts(RequestId id, std::span<const TokenId> drafts) {
  if (drafts.size() >= static_cast<std::size_t>(config_.max_row_tokens)) {
    refuse("set_drafts: at most max_row_tokens - 1 drafts, not " + std::to_string(drafts.size()));
  }
  if (std::any_of(drafts.begin(), drafts.end(), [](TokenId token) { return token < 0; })) {
    refuse("set_drafts: a token id is negative");
  }
  Request* request = roster_.find(id);
  if (request == nullptr) {
    counters_.ignored_events += 1;  // late or unknown: legal
    return false;
  }
  request->drafts.assign(drafts.begin(), drafts.end());
  request->drafts_step = next_step_;
  return true;
}

// The next chunk of every prompt that is being computed, within the prefill share. A chunk's
// tokens are known, so it does not wait for the commit of the one before. Returns what is left of
// the share.
int Scheduler::add_prefill_rows(Batch& batch) {
  int budget = batch.tokens_left();
  if (batch.num_decode_rows() > 0) {
    budget = std::min(budget, prefill_budget_.limit());
  }
  for (std::size_t i = 0; i < roster_.running().size() && budget > 0; ++i) {
    Request& request = *roster_.running()[i];
    if (std::holds_alternative<fsm::Prefill>(request.state) && !request.prompt_planned()) {
      budget -= rows_.add_prefill(batch, request, budget);
    }
  }
  return budget;
}

void Scheduler::commit(std::int64_t step, const StepResults& results) {
  check_whole();
  if (steps_.empty() || steps_.front().step != step) {
    const bool had_no_rows = step > last_committed_ && step < next_step_ &&
                             (steps_.empty() || step < steps_.front().step);
    if (!had_no_rows || !results.num_tokens.empty()) {
      refuse("commit: step " + std::to_string(step) + " is not the oldest uncommitted step");
    }
    last_committed_ = step;
    return;
  }
  check_results(steps_.front(), results);
  const auto width = static_cast<std::size_t>(config_.max_row_tokens);
  updates_.make_room(results.num_tokens.size(), width);
  StepRecord record = steps_.pop();
  last_committed_ = step;
  prefill_budget_.observe(record.prefill_tokens, record.decode_rows, results.elapsed_us);
  for (std::size_t row = 0; row < record.rows.size(); ++row) {
    const auto count = static_cast<std::size_t>(results.num_tokens[row]);
    commit_row(record.rows[row],
               {results.failed[row] != 0, results.tokens.subspan(row * width, count)});
  }
  steps_.recycle(std::move(record));
}

void Scheduler::commit_row(const fsm::RowRecord& row, const fsm::RowResult& result) noexcept {
  Request& request = *row.request;
  request.in_flight -= 1;
  const bool counts = !result.failed && !std::holds_alternative<fsm::Draining>(request.state);
  if (row.decode && counts) {  // drafts that were not accepted
    const int surplus = row.count - static_cast<int>(result.tokens.size());
    request.planned -= surplus;
    request.planned_outputs -= surplus;
  }
  std::visit([&](auto event) { lifecycle_.send(request, std::move(event)); },
             fsm::to_event(row, result));
  lifecycle_.settle(request);
}

void Scheduler::check_results(const StepRecord& record, const StepResults& results) const {
  const std::size_t rows = record.rows.size();
  const auto width = static_cast<std::size_t>(config_.max_row_tokens);
  if (results.num_tokens.size() != rows || results.failed.size() != rows ||
      results.tokens.size() != rows * width) {
    refuse("commit: step " + std::to_string(record.step) + " has " + std::to_string(rows) +
           " rows; num_tokens has " + std::to_string(results.num_tokens.size()) +
           ", failed has " + std::to_string(results.failed.size()) + ", tokens has " +
           std::to_string(results.tokens.size()) + " entries");
  }
  for (std::size_t i = 0; i < rows; ++i) {
    const fsm::RowRecord& row = record.rows[i];
    const int count = results.num_tokens[i];
    const bool counts = results.failed[i] == 0 &&
                        !std::holds_alternative<fsm::Draining>(row.request->state);
    const int least = row.emits && counts ? 1 : 0;
    const int most = row.decode ? row.count : row.emits ? 1 : 0;
    if (count < least || count > most) {
      refuse("commit: row " + std::to_string(i) + " of step " + std::to_string(record.step) +
             " returns " + std::to_string(count) + " tokens, not " + std::to_string(least) +
             (most == least ? "" : " to " + std::to_string(most)));
    }
  }
}

bool Scheduler::ack(TransferId id, bool ok) {
  const std::optional<Transfer> transfer = transfers_.end(id, ok);
  if (!transfer) {
    counters_.ignored_events += 1;  // late, duplicate or unknown: legal
    return false;
  }
  Request* request = transfer->request;
  const auto* loading =
      request == nullptr ? nullptr : std::get_if<fsm::Loading>(&request->state);
  if (loading != nullptr && request->arrival == transfer->arrival && loading->ticket.id() == id) {
    ok ? lifecycle_.send(*request, fsm::Loaded{}) : lifecycle_.send(*request, fsm::LoadFailed{});
  }
  return true;
}

bool Scheduler::reset_prefix_cache() {
  if (has_work()) {
    return false;
  }
  cache_.clear();
  return true;
}

std::vector<PageId> Scheduler::page_table(RequestId id, int group) const {
  if (group < 0 || group >= layout_.num_groups()) {
    refuse("page_table: group " + std::to_string(group) + " does not exist");
  }
  const Request* request = roster_.find(id);
  const Reservation* reservation =
      request == nullptr ? nullptr : fsm::reservation_of(std::as_const(request->state));
  return reservation == nullptr ? std::vector<PageId>{}
                                : reservation->page_table(cache_.tree(), group);
}

TokenHistory Scheduler::tokens(RequestId id) const {
  const Request* request = roster_.find(id);
  if (request == nullptr) {
    refuse("tokens: request " + std::to_string(id) + " is unknown or over");
  }
  return {request->tokens, request->prompt_len};
}

Gauges Scheduler::gauges() const noexcept {
  Gauges gauges;
  gauges.running = static_cast<int>(roster_.running().size());
  gauges.waiting = roster_.queue().size();
  gauges.loading = roster_.loading();
  gauges.draining = roster_.leaving();
  gauges.free_pages = cache_.device().free();
  gauges.cached_pages = cache_.cached_pages();
  gauges.total_pages = cache_.device().total();
  gauges.host_free_pages = cache_.host().free();
  gauges.host_total_pages = cache_.host().total();
  gauges.transfers = transfers_.in_flight();
  gauges.waiting_tokens = roster_.queue().tokens();
  return gauges;
}

}  // namespace tokenspeed
