// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include "cache/kv_cache.h"
#include "schedule/batch.h"
#include "schedule/growth.h"
#include "schedule/request.h"

namespace tokenspeed {

// Puts the next row of a running request into a step: page table, pages, copies, row.
class Rows {
 public:
  Rows(KvCache& cache, Growth& growth) : cache_(cache), growth_(growth) {}

  // False: pages ran short, and the request has no row in this step. It may have been retracted.
  // `spare`: pages that guesses leave to others.
  bool add_decode(Batch& batch, Request& request, int drafts, int spare);
  // At most `budget` tokens of the prompt. Returns how many; 0 when not in this step.
  int add_prefill(Batch& batch, Request& request, int budget);

 private:
  bool tell(Batch& batch, Reservation& reservation) noexcept;
  void introduce(Batch& batch, Reservation& reservation) noexcept;
  int chunk_end(const Request& request, int budget) const noexcept;
  int extend(Batch& batch, Request& request, int upto);
  int extend_freely(Reservation& reservation, int upto, int spare);
  void freeze_state(Batch& batch, const Request& request, Reservation& reservation) noexcept;

  KvCache& cache_;
  Growth& growth_;
};

}  // namespace tokenspeed
