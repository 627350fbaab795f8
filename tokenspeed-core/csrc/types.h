// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>

namespace tokenspeed {

using RequestId = std::uint64_t;   // the caller's name for a request
using TransferId = std::uint64_t;  // our name for a transfer between tiers
using Namespace = std::uint64_t;   // what else changes KV: tenant salt, adapter, media hash, ...
using PageKey = std::uint64_t;     // chained hash of a prefix that ends at a block boundary
using TokenId = std::int32_t;
using PageId = std::int32_t;
using SlotId = std::int32_t;
using Epoch = std::uint32_t;

// Page 0 is never owned: padding and dead rows point to it.
inline constexpr PageId kNullPage = 0;

constexpr int ceil_div(int value, int by) noexcept {
  return value / by + (value % by != 0 ? 1 : 0);
}

enum class Tier : std::uint8_t {
  DEVICE = 1,
  HOST = 2,
};

// Why a request ended. The numbers cross the Python border.
enum class Finish : std::uint8_t {
  NONE = 0,
  STOP = 1,
  LENGTH = 2,
  ABORTED = 3,
  EXPIRED = 4,
  FAILED = 5,
};

}  // namespace tokenspeed
