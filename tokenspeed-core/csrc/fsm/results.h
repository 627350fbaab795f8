// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <algorithm>
#include <span>
#include <variant>

#include "fsm/events.h"
#include "schedule/request.h"

namespace tokenspeed::fsm {

// A planned row, as it is remembered until its commit.
struct RowRecord {
  Request* request;
  int count;    // query tokens
  bool emits;
  bool decode;  // then count - 1 of them are drafts
};

struct RowResult {
  bool failed;
  std::span<const TokenId> tokens;  // of a row that emits
};

using ResultEvent = std::variant<ChunkDone, PromptDone, Token, Stopped, Fail>;

// Total: every result of every row is exactly one event. A token id below zero never came from
// a vocabulary; such a row failed, and its KV is not trusted. A row's KV grows by its input tokens:
// those of a chunk, or one before each token that a decode row returned.
inline ResultEvent to_event(const RowRecord& row, const RowResult& result) noexcept {
  const auto& tokens = result.tokens;
  const auto bad = [](TokenId token) { return token < 0; };
  if (result.failed || (row.emits && std::any_of(tokens.begin(), tokens.end(), bad))) {
    return Fail{};
  }
  const Request& request = *row.request;
  if (!row.emits) {
    return ChunkDone{request.computed + row.count};
  }
  const auto& stops = request.stop_ids;
  const int left = request.max_new_tokens - request.outputs();
  for (int i = 0; i < static_cast<int>(tokens.size()); ++i) {
    const bool stop =
        std::find(stops.begin(), stops.end(), tokens[static_cast<std::size_t>(i)]) != stops.end();
    if (stop || i + 1 >= left) {
      const int kv_len = request.computed + (row.decode ? i + 1 : row.count);
      return Stopped{kv_len, tokens.first(static_cast<std::size_t>(i) + 1),
                     stop ? Finish::STOP : Finish::LENGTH};
    }
  }
  if (row.decode) {
    return Token{request.computed + static_cast<int>(tokens.size()), tokens};
  }
  return PromptDone{request.computed + row.count, tokens};
}

}  // namespace tokenspeed::fsm
