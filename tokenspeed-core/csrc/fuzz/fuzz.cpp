// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
//
// Drives the control plane with random messages and a model of the device.
//
//   tokenspeed_fuzz --messages 200000 [--seed 0] [--rare 1]       many small worlds, in turn
//   tokenspeed_fuzz --world 1234 [--verbose]                     one of them again
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string>

#include "fsm/machine.h"
#include "fuzz/random_run.h"

namespace tokenspeed::fuzz {
namespace {

constexpr int kMessagesOfAWorld = 400;

struct Options {
  std::uint64_t seed = 0;
  long long messages = 200'000;
  // Every row of the table is taken so often, or the run fails; else as often as its length
  // lets expect: a hundred times in 12 million messages.
  std::optional<unsigned long long> rare;
  bool one_world = false;
  bool verbose = false;
};

// What an assertion or a sanitizer leaves behind: how to get there again.
char replay_line[128];
extern "C" void print_replay_line(int) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, replay_line, std::strlen(replay_line));
}

// What the worlds of a run have come to.
struct Done {
  long long messages = 0;
  Verified verified;
};

bool run_world(std::uint64_t seed, bool verbose, Done& done) {
  std::snprintf(replay_line, sizeof replay_line,
                "replay with: tokenspeed_fuzz --world %llu --verbose\n",
                static_cast<unsigned long long>(seed));
  RandomRun run(seed, verbose);
  if (verbose) {
    std::printf("%s\n", describe(run.config()).c_str());
  }
  try {
    for (int i = 0; i < kMessagesOfAWorld; ++i) {
      run.send();
    }
    run.run_to_idle();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "FAILED at message %d of world %llu: %s\n  %s\n%s", run.messages(),
                 static_cast<unsigned long long>(seed), failure.what(),
                 describe(run.config()).c_str(), replay_line);
    return false;
  }
  done.messages += run.messages();
  done.verified += run.verified();
  return true;
}

// Prints how often each row of the transition table was taken; false if one was too rare.
bool report_coverage(unsigned long long rare) {
  using T = fsm::Transitions;
  bool enough = true;
  for (std::size_t i = 0; i < T::rows.size(); ++i) {
    const fsm::TableRow& row = T::rows[i];
    if (row.kind != fsm::OutcomeKind::TO) {
      continue;
    }
    const auto name = [](std::string_view text) { return std::string(text); };
    const std::uint64_t times = fsm::coverage[i] / 2;  // both ranks take it
    const bool ok = times >= rare;
    enough &= ok;
    std::printf("%12llu  %-10s %-12s -> %s%s\n", static_cast<unsigned long long>(times),
                name(T::state_names[row.state]).c_str(), name(T::event_names[row.event]).c_str(),
                name(T::state_names[row.next]).c_str(), ok ? "" : "   TOO RARE");
  }
  return enough;
}

// The same of rows whose drafts were given.
bool report_drafts(const Verified& verified, unsigned long long rare) {
  std::printf("drafts given: %llu rows all right, %llu in part, %llu not\n", verified.all,
              verified.some, verified.none);
  return std::min({verified.all, verified.some, verified.none}) >= rare;
}

int run(const Options& options) {
  Done done;
  if (options.one_world) {
    return run_world(options.seed, options.verbose, done) ? 0 : 1;
  }
  Random seeds(options.seed);
  long long worlds = 0;
  while (done.messages < options.messages) {
    if (!run_world(seeds.next(), options.verbose, done)) {
      return 1;
    }
    ++worlds;
  }
  const long long expected = std::clamp(done.messages / 120'000, 1LL, 100LL);
  const auto rare = options.rare.value_or(static_cast<unsigned long long>(expected));
  bool enough = report_coverage(rare);
  enough &= report_drafts(done.verified, rare);
  std::printf("%lld messages in %lld worlds\n", done.messages, worlds);
  return enough ? 0 : 1;
}

}  // namespace
}  // namespace tokenspeed::fuzz

int main(int argc, char** argv) {
  tokenspeed::fuzz::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> unsigned long long {
      return i + 1 < argc ? std::strtoull(argv[++i], nullptr, 10) : 0;
    };
    if (name == "--verbose") {
      options.verbose = true;
    } else if (name == "--messages") {
      options.messages = static_cast<long long>(value());
    } else if (name == "--rare") {
      options.rare = value();
    } else if (name == "--seed") {
      options.seed = value();
    } else if (name == "--world") {
      options.one_world = true;
      options.seed = value();
    } else {
      std::fprintf(stderr, "unknown option %s\n", name.c_str());
      return 2;
    }
  }
  std::signal(SIGABRT, tokenspeed::fuzz::print_replay_line);
  return tokenspeed::fuzz::run(options);
}

#if defined(__SANITIZE_ADDRESS__)
// A sanitizer's report ends in abort(), so that the replay line is printed.
extern "C" const char* __asan_default_options() { return "abort_on_error=1"; }
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1"; }
#endif
