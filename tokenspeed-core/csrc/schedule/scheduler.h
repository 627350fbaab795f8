// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/layout.h"
#include "cache/page_keys.h"
#include "cache/slot_pool.h"
#include "cache/transfers.h"
#include "schedule/admission.h"
#include "schedule/batch.h"
#include "config.h"
#include "counters.h"
#include "schedule/deadlines.h"
#include "schedule/digests.h"
#include "schedule/growth.h"
#include "schedule/ledger.h"
#include "schedule/lifecycle.h"
#include "schedule/prefill_budget.h"
#include "schedule/roster.h"
#include "schedule/rows.h"
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
  int priority = 0;
  int draft_tokens = 0;
  std::int64_t deadline_ms = 0;
  std::int64_t now_ms = 0;
};

inline constexpr int kMaxPriority = 100;
inline constexpr std::int64_t kMaxTimeMs = std::int64_t{1} << 53;

// What came back from a step: one entry per row, max_row_tokens tokens each.
struct StepResults {
  std::span<const std::int32_t> num_tokens;
  std::span<const TokenId> tokens;
  std::span<const std::uint8_t> failed;
  std::int64_t elapsed_us = 0;  // 0: not known
};

struct Gauges {
  int running = 0;
  int waiting = 0;
  int loading = 0;
  int draining = 0;
  int free_pages = 0;
  int cached_pages = 0;
  int total_pages = 0;
  int host_free_pages = 0;
  int host_total_pages = 0;
  int transfers = 0;
  std::int64_t waiting_tokens = 0;
};

// The prompt and the committed output of a request, for as long as nothing is committed.
struct TokenHistory {
  std::span<const TokenId> tokens;
  int prompt_len = 0;
};

// The control plane: who computes what in the next step. Calls come from one thread and read no
// clock; the same calls give the same plans on every rank. Arguments that break the interface
// throw std::invalid_argument before anything has changed. Should memory run out within a plan, the
// scheduler is broken: every further call of submit, plan and commit throws std::logic_error.
class Scheduler {
 public:
  explicit Scheduler(const Config& config);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  SubmitResult submit(const Submission& submission);
  bool abort(RequestId id);
  PlanSummary plan(std::int64_t now_ms, const PlanView& out);
  void commit(std::int64_t step, const StepResults& results);
  // Guesses at a request's next tokens, which the next plan has verified where all before them is
  // known and there is room. False, and no effect, when the id is unknown or over.
  bool set_drafts(RequestId id, std::span<const TokenId> drafts);
  // A transfer ended. False, and no effect, when it is not in flight.
  bool ack(TransferId transfer, bool ok);
  void check_digest(std::int64_t step, std::uint64_t digest) const { digests_.check(step, digest); }
  UpdateColumns take_updates() { return updates_.take(); }
  KvEventColumns take_kv_events() { return cache_.take_events(); }
  std::vector<RejectedEvent> take_rejected_events() { return lifecycle_.take_rejected(); }

  bool has_work() const noexcept {
    return roster_.alive() > 0 || !steps_.empty() || transfers_.pending();
  }
  bool reset_prefix_cache();
  Ledger ledger() const { return take_ledger(cache_, transfers_, roster_); }
  Gauges gauges() const noexcept;
  // What the device's page table of a request must hold; empty when it owns no pages.
  std::vector<PageId> page_table(RequestId id, int group = 0) const;
  TokenHistory tokens(RequestId id) const;
  const Counters& counters() const noexcept { return counters_; }
  const Config& config() const noexcept { return config_; }
  const Layout& layout() const noexcept { return layout_; }

 private:
  SubmitResult judge(const Submission& submission) const;
  Request make_request(const Submission& submission) const;
  void check_whole() const;
  void check_view(const PlanView& out) const;
  void check_results(const StepRecord& record, const StepResults& results) const;
  void expire(std::int64_t now_ms);
  void write_through(Batch& batch);
  bool add_decode_rows(Batch& batch);
  int add_prefill_rows(Batch& batch);
  int drafts_for(const Batch& batch, const Request& request) const noexcept;
  Blocked why_blocked() const noexcept;
  void commit_row(const fsm::RowRecord& row, const fsm::RowResult& result) noexcept;

  Config config_;
  Layout layout_;
  PageHasher hasher_;
  Counters counters_;
  UpdateLog updates_;
  KvCache cache_;  // outlives the transfers and the roster, which own parts of it
  SlotPool slots_;
  Transfers transfers_;
  Roster roster_;
  Lifecycle lifecycle_;
  Growth growth_;
  Rows rows_;
  Admission admission_;
  PrefillBudget prefill_budget_;
  Deadlines deadlines_;
  Steps steps_;
  Digests digests_;
  bool broken_ = false;  // a plan did not come to its end
  std::int64_t next_step_ = 0;
  std::int64_t last_committed_ = -1;
};

}  // namespace tokenspeed
