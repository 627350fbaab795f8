// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include "schedule/request.h"

// Waiting for a page that another request computes right now (its "provider").
namespace tokenspeed {

// Pages [0, last_page) of a prompt may come from others; its last token is always computed.
int last_page(const Request& request, int page_size) noexcept;

// Does `provider` compute the page `page` of `waiter` in its prompt, with the same content from
// the start of the prefix to the page's end?
bool computes_page(const Request& provider, const Request& waiter, int page,
                   int page_size) noexcept;

ProviderWait wait_for(const Request& provider, int page) noexcept;

// One plan's look at a waiting request; false: match its prefix again now.
bool keep_waiting(Request& waiter, int page_size, int max_idle_plans) noexcept;

}  // namespace tokenspeed
