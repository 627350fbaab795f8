// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include "fsm/events.h"
#include "fsm/states.h"
#include "fsm/table.h"

namespace tokenspeed::fsm {

using _ = reject;  // so that the table shows what can happen

// clang-format off
// The one transition table. Reading a line: what each event does to a request in that state.
using Transitions = Table<
  On<              Admit,       Load,        Loaded,      LoadFailed,  ChunkDone,      PromptDone,     Token,          Stopped,      Fail,         Abort,        Expire,       Retract,        Drained>,
  From<Waiting,    to<Prefill>, to<Loading>, _,           _,           _,              _,              _,              _,            _,            to<Finished>, to<Finished>, _,              _>,
  From<Loading,    _,           _,           to<Prefill>, to<Waiting>, _,              _,              _,              _,            _,            to<Finished>, to<Finished>, to<Waiting>,    _>,
  From<Prefill,    _,           _,           _,           _,           to<Prefill>,    to<Decode>,     _,              to<Draining>, to<Draining>, to<Draining>, to<Draining>, to<Retracting>, _>,
  From<Decode,     _,           _,           _,           _,           _,              _,              to<Decode>,     to<Draining>, to<Draining>, to<Draining>, to<Draining>, to<Retracting>, _>,
  From<Retracting, _,           _,           _,           _,           to<Retracting>, to<Retracting>, to<Retracting>, to<Draining>, to<Draining>, to<Draining>, to<Draining>, ignore,         to<Waiting>>,
  From<Draining,   _,           _,           _,           _,           ignore,         ignore,         ignore,         ignore,       ignore,       ignore,       ignore,       ignore,         to<Finished>>,
  From<Finished,   _,           _,           _,           _,           _,              _,              _,              _,            _,            ignore,       ignore,       _,              _>
>;
// clang-format on

static_assert(Transitions::num_states == std::variant_size_v<State>);
static_assert(Transitions::every_state_reachable_from<Waiting>());
static_assert(
    Transitions::reachable_from_every_state_without<Finished, Abort, Fail, Expire>(),
    "a request must be able to end by itself: cancelling and failing are not ways to finish");

}  // namespace tokenspeed::fsm
