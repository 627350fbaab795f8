// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <span>
#include <string_view>
#include <type_traits>

#include "cache/reservation.h"
#include "cache/transfers.h"
#include "types.h"

// What can happen to a request. `kv_len` is the KV length that a committed row reached.
namespace tokenspeed::fsm {

struct Admit {
  static constexpr std::string_view name = "Admit";
  Reservation reservation;
  int cached;  // tokens whose KV the reservation holds
};
struct Load {  // admitted, but some of its KV must come from the host tier first
  static constexpr std::string_view name = "Load";
  Reservation reservation;
  int cached;
  int from_host;  // of these, the tokens that the transfer brings
  LoadTicket ticket;
};
struct Loaded {
  static constexpr std::string_view name = "Loaded";
};
struct LoadFailed {
  static constexpr std::string_view name = "LoadFailed";
};

// Results of a row; results.h makes them.
struct ChunkDone {  // a chunk of the prompt, not the last
  static constexpr std::string_view name = "ChunkDone";
  int kv_len;
};
struct PromptDone {  // the last chunk, with the first token
  static constexpr std::string_view name = "PromptDone";
  int kv_len;
  std::span<const TokenId> tokens;  // one
};
struct Token {  // one, or more where drafts were accepted
  static constexpr std::string_view name = "Token";
  int kv_len;
  std::span<const TokenId> tokens;
};
struct Stopped {  // the last of these tokens ends the answer
  static constexpr std::string_view name = "Stopped";
  int kv_len;
  std::span<const TokenId> tokens;
  Finish finish;  // STOP or LENGTH
};
struct Fail {  // the executor could not compute the row
  static constexpr std::string_view name = "Fail";
  static constexpr Finish finish = Finish::FAILED;
};

// From outside.
struct Abort {
  static constexpr std::string_view name = "Abort";
  static constexpr Finish finish = Finish::ABORTED;
};
struct Expire {
  static constexpr std::string_view name = "Expire";
  static constexpr Finish finish = Finish::EXPIRED;
};

// From the scheduler itself.
struct Retract {  // pages ran short and this request is the victim
  static constexpr std::string_view name = "Retract";
};
struct Drained {  // no step in flight reads or writes its pages any more
  static constexpr std::string_view name = "Drained";
};

template <class E>
concept Cancelling = std::is_same_v<E, Abort> || std::is_same_v<E, Expire>;
template <class E>
concept Ending = Cancelling<E> || std::is_same_v<E, Fail>;

}  // namespace tokenspeed::fsm
