// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/random.h"
#include "fuzz/world.h"

namespace tokenspeed::fuzz {

// Pools so small that everything runs short, and every feature on or off.
Config random_config(Random& random);
std::string describe(const Config& config);

// A world, and clients who send it random messages: all that its seed says.
class RandomRun {
 public:
  RandomRun(std::uint64_t seed, bool verbose);

  void send();
  void run_to_idle() { world_.run_to_idle(); }
  const Config& config() const noexcept { return config_; }
  const Verified& verified() const noexcept { return world_.verified(); }
  int messages() const noexcept { return world_.messages(); }

 private:
  void submit();
  void submit_again();
  void abort();
  void give_drafts();
  void plan();
  void commit_wrongly();
  void ack();
  void ack_late_or_unknown();
  std::vector<TokenId> random_prompt();
  std::vector<TokenId> next_turn(Namespace& ns);
  RequestId random_client() {
    return static_cast<RequestId>(1 + random_.below(world_.num_clients()));
  }

  Random random_;
  Config config_;
  World world_;
  int depth_;  // steps in flight when a plan is made
  int failing_percent_;
  int deadline_percent_;
  int slow_load_percent_;
  int drafting_percent_;  // of plans, before which everybody gets drafts
  int longest_answer_;
  std::vector<TokenId> base_;  // prompts begin with parts of it
};

}  // namespace tokenspeed::fuzz
