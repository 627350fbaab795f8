// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include "schedule/request.h"

// Waiting for a block that another request computes right now (its "provider").
namespace tokenspeed {

// Blocks [0, last_block) of a prompt may come from others; its last token is always computed.
int last_block(const Request& request, int block_size) noexcept;

// Does `provider` compute the block `block` of `waiter` in its prompt, with the same content from
// the start of the prefix to the block's end?
bool computes_block(const Request& provider, const Request& waiter, int block,
                    int block_size) noexcept;

ProviderWait wait_for(const Request& provider, int block, std::int64_t step) noexcept;

// A look at a waiting request in the plan of `step`; false: match its prefix again now.
bool keep_waiting(Request& waiter, int block_size, int max_idle_plans, std::int64_t step) noexcept;

}  // namespace tokenspeed
