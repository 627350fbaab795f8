// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include "bindings/arrays.h"
#include "schedule/batch.h"

namespace tokenspeed::bindings {

// The caller's arrays, validated once. It keeps a reference to each, so that none can be freed
// under a plan.
class PlanBuffers {
 public:
  explicit PlanBuffers(const nb::kwargs& arrays);
  const PlanView& view() const noexcept { return view_; }
  std::size_t groups() const noexcept { return groups_; }

 private:
  nb::dict arrays_;
  PlanView view_;
  std::size_t groups_ = 0;
};

void bind_plan_buffers(nb::module_& m);

}  // namespace tokenspeed::bindings
