// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_keys.h"
#include "schedule/admission.h"
#include "schedule/batch.h"
#include "schedule/config.h"
#include "schedule/counters.h"
#include "schedule/deadlines.h"
#include "schedule/growth.h"
#include "schedule/ledger.h"
#include "schedule/lifecycle.h"
#include "schedule/resources.h"
#include "schedule/roster.h"
#include "schedule/steps.h"
#include "schedule/update_log.h"

namespace tokenspeed {

enum class Rejection : std::uint8_t {
  ACCEPTED = 0,
  DUPLICATE_ID = 1,
  EMPTY_PROMPT = 2,
  NEVER_FITS = 3,
  TOO_LONG = 4,
};

struct SubmitResult {
  Rejection rejection = Rejection::ACCEPTED;
  std::int64_t needed = 0;
  std::int64_t available = 0;
};

struct Submission {
  RequestId id = 0;
  std::span<const TokenId> tokens;
  int max_new_tokens = 0;
  std::span<const TokenId> stop_ids;
  Namespace ns = 0;
  std::int64_t deadline_ms = 0;
};

// What came back from a step: one entry per row, max_row_tokens tokens each.
struct StepResults {
  std::span<const std::int32_t> num_tokens;
  std::span<const TokenId> tokens;
  std::span<const std::uint8_t> failed;
};

struct Gauges {
  int running = 0;
  int waiting = 0;
  int draining = 0;
  int free_pages = 0;
  int cached_pages = 0;
  int total_pages = 0;
  std::int64_t waiting_tokens = 0;
};

// The control plane: who computes what in the next step. Calls come from one thread and read no
// clock; the same calls give the same plans on every rank. Arguments that break the interface
// throw std::invalid_argument before anything has changed.
class Scheduler {
 public:
  explicit Scheduler(const Config& config);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  SubmitResult submit(const Submission& submission);
  bool abort(RequestId id);
  PlanSummary plan(std::int64_t now_ms, const PlanView& out);
  void commit(std::int64_t step, const StepResults& results);
  UpdateColumns take_updates() { return updates_.take(); }
  std::vector<RejectedEvent> take_rejected_events() { return lifecycle_.take_rejected(); }

  bool has_work() const noexcept { return roster_.alive() > 0 || !steps_.empty(); }
  bool reset_prefix_cache();
  Ledger ledger() const { return take_ledger(resources_, roster_); }
  Gauges gauges() const noexcept;
  // What the device's page table of a request must hold; empty when it owns no pages.
  std::vector<PageId> page_table(RequestId id) const;
  const Counters& counters() const noexcept { return counters_; }
  const Config& config() const noexcept { return config_; }

 private:
  SubmitResult judge(const Submission& submission) const;
  Request make_request(const Submission& submission) const;
  void check_view(const PlanView& out) const;
  void check_results(const StepRecord& record, const StepResults& results) const;
  void expire(std::int64_t now_ms);
  bool add_decode_rows(Batch& batch);
  int add_prefill_rows(Batch& batch);

  Config config_;
  PageHasher hasher_;
  Counters counters_;
  UpdateLog updates_;
  Resources resources_;  // outlives the roster, whose requests own parts of it
  Roster roster_;
  Lifecycle lifecycle_;
  Admission admission_;
  Growth growth_;
  Deadlines deadlines_;
  Steps steps_;
  std::int64_t next_step_ = 0;
  std::int64_t last_committed_ = -1;
};

}  // namespace tokenspeed
