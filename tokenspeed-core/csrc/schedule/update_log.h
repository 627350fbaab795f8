// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "types.h"

namespace tokenspeed {

// What happened to requests, as flat columns: entry i has the tokens
// [token_start[i], token_start[i + 1]).
struct UpdateColumns {
  std::vector<RequestId> request;
  std::vector<std::int32_t> token_start{0};
  std::vector<TokenId> tokens;
  std::vector<std::uint8_t> finish;
  std::vector<TokenId> stop_token;
  std::vector<std::int32_t> cached_tokens;
};

struct Update {
  RequestId request;
  Finish finish = Finish::NONE;
  TokenId stop_token = -1;
  std::int32_t cached_tokens = 0;
};

// Collects updates until they are taken. Adding never allocates within what make_room promised:
// actions are noexcept, so the room is made in the check phase before them.
class UpdateLog {
 public:
  void make_room(std::size_t entries, std::size_t tokens_each = 1) {
    const std::size_t tokens = columns_.tokens.size() + entries * tokens_each;
    const std::size_t need = columns_.request.size() + entries;
    if (need <= room_ && tokens <= columns_.tokens.capacity()) {
      return;
    }
    const std::size_t room = std::max(need, room_ * 2);
    columns_.tokens.reserve(std::max(tokens, room));
    columns_.request.reserve(room);
    columns_.token_start.reserve(room + 1);
    columns_.finish.reserve(room);
    columns_.stop_token.reserve(room);
    columns_.cached_tokens.reserve(room);
    room_ = room;  // once all of it is there
  }

  void add(const Update& update, std::span<const TokenId> tokens) noexcept {
    columns_.tokens.insert(columns_.tokens.end(), tokens.begin(), tokens.end());
    columns_.request.push_back(update.request);
    columns_.token_start.push_back(static_cast<std::int32_t>(columns_.tokens.size()));
    columns_.finish.push_back(static_cast<std::uint8_t>(update.finish));
    columns_.stop_token.push_back(update.stop_token);
    columns_.cached_tokens.push_back(update.cached_tokens);
  }

  UpdateColumns take() {
    room_ = 0;
    UpdateColumns taken;
    std::swap(taken, columns_);
    return taken;
  }

 private:
  UpdateColumns columns_;
  std::size_t room_ = 0;
};

}  // namespace tokenspeed
