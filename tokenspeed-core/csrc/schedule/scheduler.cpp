// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/scheduler.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace tokenspeed {
namespace {

Config checked(const Config& config) {
  check(config);
  return config;
}

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

}  // namespace

Scheduler::Scheduler(const Config& config)
    : config_(checked(config)),
      hasher_(config_.page_size(), config_.hash_bits),
      resources_(config_, counters_),
      roster_(config_.max_seqs),
      lifecycle_(roster_,
                 {config_.page_size(), hasher_, resources_.tree(), updates_, counters_}),
      admission_(config_, resources_, roster_, lifecycle_, counters_),
      growth_(resources_, roster_, lifecycle_, updates_),
      steps_(config_.max_seqs) {}

SubmitResult Scheduler::submit(const Submission& submission) {
  const SubmitResult result = judge(submission);
  if (result.rejection == Rejection::ACCEPTED) {
    deadlines_.add(roster_.add(make_request(submission)));
  }
  return result;
}

// What can never run is refused here, with the numbers, so that it cannot block the queue.
SubmitResult Scheduler::judge(const Submission& s) const {
  if (s.max_new_tokens < 1) {
    refuse("max_new_tokens must be at least 1, not " + std::to_string(s.max_new_tokens));
  }
  if (std::any_of(s.tokens.begin(), s.tokens.end(), [](TokenId t) { return t < 0; })) {
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
  const int pages = ceil_div(static_cast<int>(length) - 1, config_.page_size());
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
  request.deadline_ms = s.deadline_ms;
  request.prompt_len = static_cast<int>(s.tokens.size());
  request.max_new_tokens = s.max_new_tokens;
  request.stop_ids.assign(s.stop_ids.begin(), s.stop_ids.end());
  const std::size_t length = s.tokens.size() + static_cast<std::size_t>(s.max_new_tokens);
  request.tokens.reserve(length);
  request.tokens.assign(s.tokens.begin(), s.tokens.end());
  if (config_.prefix_cache) {
    request.keys.reserve(length / static_cast<std::size_t>(config_.page_size()));
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
  check_view(out);
  StepRecord record = steps_.open(next_step_);
  expire(now_ms);
  Batch batch(next_step_, out, record.rows);
  const bool short_of_pages = add_decode_rows(batch);
  const int budget = add_prefill_rows(batch);
  if (!short_of_pages) {
    admission_.run(batch, budget);
  }
  // A step without rows has no results to wait for.
  record.rows.empty() ? steps_.recycle(std::move(record)) : steps_.push(std::move(record));
  next_step_ += 1;
  counters_.steps += 1;
  return batch.finish();
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
  const int deltas = config_.max_pages_per_request() + config_.max_seqs;
  if (out.delta_slot.size() < static_cast<std::size_t>(deltas)) {
    refuse("delta_slot: D is " + std::to_string(out.delta_slot.size()) +
           ", pages per request + max_seqs is " + std::to_string(deltas));
  }
}

void Scheduler::expire(std::int64_t now_ms) {
  while (Request* request = deadlines_.pop_expired(now_ms)) {
    updates_.make_room(1);
    lifecycle_.end(*request, fsm::Expire{});
  }
}

// Every request that has its prompt planned and tokens to go gets one row, oldest first. Returns
// whether pages ran short: then nobody is admitted in this step.
bool Scheduler::add_decode_rows(Batch& batch) {
  const int page_size = config_.page_size();
  bool short_of_pages = false;
  // Retraction shortens the list, at or behind the row in hand.
  for (std::size_t i = 0; i < roster_.running().size(); ++i) {
    Request& request = *roster_.running()[i];
    if (!request.prompt_planned() || request.planned_outputs >= request.max_new_tokens) {
      continue;
    }
    Reservation* reservation = fsm::reservation_of(request.state);
    if (request.planned / page_size == reservation->size()) {
      Page page = growth_.take_page_for(request);
      if (!page) {
        short_of_pages = true;
        continue;
      }
      batch.add_delta(reservation->slot(), reservation->size(), page.id());
      reservation->append(std::move(page));
    }
    batch.add_decode_row(request, reservation->slot());
  }
  return short_of_pages;
}

// The next chunk of every prompt that is being computed, oldest first, within the prefill share.
// A chunk's tokens are known, so it does not wait for the commit of the one before. Returns what
// is left of the share.
int Scheduler::add_prefill_rows(Batch& batch) {
  int budget = batch.tokens_left();
  if (batch.num_decode_rows() > 0) {
    budget = std::min(budget, config_.prefill_limit());
  }
  for (Request* request : roster_.running()) {
    if (budget == 0) {
      break;
    }
    if (request->prompt_planned()) {
      continue;
    }
    const Reservation& reservation = *fsm::reservation_of(request->state);
    const int count = std::min(budget, request->prefill_end - request->planned);
    batch.add_prefill_row(*request, reservation.slot(), count, false);
    budget -= count;
  }
  return budget;
}

void Scheduler::commit(std::int64_t step, const StepResults& results) {
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
  updates_.make_room(results.num_tokens.size());
  StepRecord record = steps_.pop();
  last_committed_ = step;
  const auto width = static_cast<std::size_t>(config_.max_row_tokens);
  for (std::size_t row = 0; row < record.rows.size(); ++row) {
    Request& request = *record.rows[row].request;
    request.in_flight -= 1;
    const fsm::RowResult result{results.failed[row] != 0, results.tokens[row * width]};
    std::visit([&](auto event) { lifecycle_.send(request, std::move(event)); },
               fsm::to_event(record.rows[row], result));
    lifecycle_.settle(request);
  }
  steps_.recycle(std::move(record));
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
  for (std::size_t row = 0; row < rows; ++row) {
    const bool counts = results.failed[row] == 0 &&
                        !std::holds_alternative<fsm::Draining>(record.rows[row].request->state);
    const int expected = record.rows[row].emits ? 1 : 0;
    if (counts && results.num_tokens[row] != expected) {
      refuse("commit: row " + std::to_string(row) + " of step " + std::to_string(record.step) +
             " returns " + std::to_string(results.num_tokens[row]) + " tokens, not " +
             std::to_string(expected));
    }
  }
}

bool Scheduler::reset_prefix_cache() {
  if (roster_.alive() > 0) {
    return false;
  }
  while (resources_.evict_one()) {
  }
  return true;
}

std::vector<PageId> Scheduler::page_table(RequestId id) const {
  const Request* request = roster_.find(id);
  const Reservation* reservation =
      request == nullptr ? nullptr : fsm::reservation_of(std::as_const(request->state));
  return reservation == nullptr ? std::vector<PageId>{}
                                : reservation->page_table(resources_.tree());
}

Gauges Scheduler::gauges() const noexcept {
  Gauges gauges;
  gauges.running = static_cast<int>(roster_.running().size());
  gauges.waiting = roster_.queue().size();
  gauges.draining = roster_.leaving();
  gauges.free_pages = resources_.pages().free();
  gauges.cached_pages = resources_.cached_pages();
  gauges.total_pages = resources_.pages().total();
  gauges.waiting_tokens = roster_.queue().tokens();
  return gauges;
}

}  // namespace tokenspeed
