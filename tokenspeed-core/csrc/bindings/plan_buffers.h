// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include "bindings/arrays.h"
#include "schedule/batch.h"
#include "schedule/scheduler.h"

namespace tokenspeed::bindings {

// What an executor reads beside the plan: its rows in other orders, and where results land.
struct ExecutorView {
  std::span<std::int32_t> delta_count;
  std::span<SlotId> token_slot;
  std::span<std::int64_t> emit_token;
  std::span<std::int64_t> emit_slot;
  std::span<std::int64_t> emit_position;
  std::span<std::int64_t> sampled;
};

// The caller's arrays, validated once. It keeps a reference to each, so that none can be freed
// under a plan.
class PlanBuffers {
 public:
  explicit PlanBuffers(const nb::kwargs& arrays);
  const PlanView& view() const noexcept { return view_; }
  std::size_t groups() const noexcept { return groups_; }
  bool has_executor() const noexcept { return !executor_.sampled.empty(); }
  std::size_t emits() const noexcept { return executor_.sampled.size(); }

  // Fill the executor's arrays from the plan that the others hold now.
  void derive(const PlanSummary& plan) noexcept;
  // The sampled tokens, as the device left them: of a row that verifies drafts, those before which
  // every draft was right.
  void commit(Scheduler& scheduler, std::int64_t step, std::int64_t elapsed_us) const;

 private:
  nb::dict arrays_;
  PlanView view_;
  ExecutorView executor_;
  std::size_t groups_ = 0;
  std::int64_t step_ = -1;  // whose plan they hold
  std::size_t rows_ = 0;
};

void bind_plan_buffers(nb::module_& m);

}  // namespace tokenspeed::bindings
