// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <vector>

#include "fuzz/world.h"

namespace tokenspeed::fuzz {

// A deployment small enough to try every order of messages, and which messages there are besides
// submit, plan, commit and ack.
struct Scenario {
  const char* name;
  Config config;
  std::vector<Question> questions;  // each is submitted once, in any order
  int depth = 1;                    // steps in flight when a plan is made
  bool aborts = false;
  bool failing_rows = false;
  bool failing_acks = false;
  bool rejected_drafts = false;
  bool given_drafts = false;
  bool time_passes = false;
  bool resets = false;
};

// Every feature by itself, on the smallest pools on which it can go wrong.
std::vector<Scenario> scenarios();

}  // namespace tokenspeed::fuzz
