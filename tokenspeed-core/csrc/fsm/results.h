// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <algorithm>
#include <variant>

#include "fsm/events.h"
#include "schedule/request.h"

namespace tokenspeed::fsm {

// A planned row, as it is remembered until its commit.
struct RowRecord {
  Request* request;
  int kv_len;   // after the row
  bool emits;
  bool decode;
};

struct RowResult {
  bool failed;
  TokenId token;  // meaningful when the row emits
};

using ResultEvent = std::variant<ChunkDone, PromptDone, Token, Stopped, Fail>;

// Total: every result of every row is exactly one event. A token id below zero never came from
// a vocabulary; such a row failed, and its KV is not trusted.
inline ResultEvent to_event(const RowRecord& row, const RowResult& result) noexcept {
  if (result.failed || (row.emits && result.token < 0)) {
    return Fail{};
  }
  if (!row.emits) {
    return ChunkDone{row.kv_len};
  }
  const Request& request = *row.request;
  const auto& stops = request.stop_ids;
  if (std::find(stops.begin(), stops.end(), result.token) != stops.end()) {
    return Stopped{row.kv_len, result.token, Finish::STOP};
  }
  if (request.outputs() + 1 >= request.max_new_tokens) {
    return Stopped{row.kv_len, result.token, Finish::LENGTH};
  }
  if (row.decode) {
    return Token{row.kv_len, result.token};
  }
  return PromptDone{row.kv_len, result.token};
}

}  // namespace tokenspeed::fsm
