// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "schedule/prefill_budget.h"

using namespace tokenspeed;

namespace {

// A device whose step costs base + per_token * tokens, give or take `noise` of that; one step in
// `every` takes ten times as long.
struct Device {
  double base_us;
  double per_token_us;
  double noise = 0.0;
  int every = 0;
  std::minstd_rand random{1};
  std::uniform_real_distribution<double> unit{-1.0, 1.0};

  double cost_us(int tokens) const { return base_us + per_token_us * tokens; }
  std::int64_t run(int tokens) {
    const double slow = every > 0 && random() % static_cast<unsigned>(every) == 0 ? 10.0 : 1.0;
    return static_cast<std::int64_t>(cost_us(tokens) * (1.0 + noise * unit(random)) * slow);
  }
};

// Runs `steps` steps, every `prefill_every`-th with as much prefill as is allowed, and returns the
// mean over the last half of what such a step costs without noise.
double settled_us(PrefillBudget& budget, Device& device, int steps = 400, int prefill_every = 1) {
  double sum = 0.0;
  int counted = 0;
  for (int i = 0; i < steps; ++i) {
    const bool prefill = i % prefill_every == 0;
    const int tokens = prefill ? budget.limit() : 0;
    budget.observe(tokens, 8, device.run(tokens));
    if (prefill && i >= steps / 2) {
      sum += device.cost_us(tokens);
      counted += 1;
    }
  }
  return sum / counted;
}

bool within(double value, double target, double tolerance) {
  return std::abs(value / target - 1.0) <= tolerance;
}

}  // namespace

TEST_CASE("without a target the limit is a fixed share of a step") {
  CHECK(PrefillBudget(8192, 0.75, 0).limit() == 6144);
  CHECK(PrefillBudget(10, 0.25, 0).limit() == 3);
  CHECK(PrefillBudget(10, 0.01, 0).limit() == 1);
  CHECK(PrefillBudget(10, 1.0, 0).limit() == 10);
  PrefillBudget budget(8192, 0.75, 0);
  budget.observe(6144, 8, 1'000'000);
  CHECK(budget.limit() == 6144);
}

TEST_CASE("steps settle at the target") {
  for (const double base_us : {500.0, 5'000.0, 11'000.0}) {
    for (const double per_token_us : {8.0, 20.0, 30.0}) {
      for (const int prefill_every : {1, 2, 10}) {
        CAPTURE(base_us);
        CAPTURE(per_token_us);
        CAPTURE(prefill_every);
        PrefillBudget budget(8192, 0.75, 30'000);
        Device device{base_us, per_token_us};
        CHECK(within(settled_us(budget, device, 400, prefill_every), 30'000, 0.1));
      }
    }
  }
}

TEST_CASE("steps settle at the target soon, and never far above it") {
  PrefillBudget budget(8192, 0.75, 30'000);
  Device device{5'000, 20};
  double highest = 0.0;
  for (int i = 0; i < 40; ++i) {
    highest = std::max(highest, device.cost_us(budget.limit()));
    budget.observe(budget.limit(), 8, device.run(budget.limit()));
  }
  CHECK(highest < 1.3 * 30'000);
  CHECK(within(device.cost_us(budget.limit()), 30'000, 0.1));
}

TEST_CASE("noise and some steps that take ten times as long do not carry the limit away") {
  for (const int prefill_every : {1, 3}) {
    PrefillBudget noisy(8192, 0.75, 30'000);
    Device shaky{5'000, 20, 0.2};
    CHECK(within(settled_us(noisy, shaky, 1000, prefill_every), 30'000, 0.1));

    PrefillBudget budget(8192, 0.75, 30'000);
    Device device{5'000, 20, 0.05, 50};
    CHECK(within(settled_us(budget, device, 1000, prefill_every), 30'000, 0.1));
  }
  PrefillBudget budget(8192, 0.75, 30'000);
  Device device{5'000, 20};
  settled_us(budget, device);
  const int before = budget.limit();
  budget.observe(before, 8, 10'000'000);
  CHECK(budget.limit() > before / 2);
}

TEST_CASE("a device that becomes slower or faster is followed") {
  PrefillBudget budget(8192, 0.75, 30'000);
  Device device{5'000, 20};
  settled_us(budget, device);
  device.base_us = 12'000;
  device.per_token_us = 40;
  CHECK(within(settled_us(budget, device), 30'000, 0.1));
  device.base_us = 3'000;
  device.per_token_us = 10;
  CHECK(within(settled_us(budget, device), 30'000, 0.1));
}

TEST_CASE("the limit does not grow beyond twice what was tried") {
  PrefillBudget budget(8192, 0.75, 30'000);
  Device device{5'000, 20};
  CHECK(budget.limit() == 512);
  for (int i = 0; i < 100; ++i) {
    budget.observe(i % 2 * 300, 8, device.run(i % 2 * 300));
  }
  CHECK(budget.limit() == 600);
}

TEST_CASE("steps far larger than the limit do not carry it away") {
  PrefillBudget budget(8192, 0.75, 40'000);
  Device device{25'000, 20};
  double sum = 0.0;
  for (int i = 0; i < 400; ++i) {
    const int tokens = i % 5 == 0 ? 8192 : budget.limit();
    budget.observe(tokens, 8, device.run(tokens));
    sum += i >= 200 ? device.cost_us(budget.limit()) : 0.0;
  }
  CHECK(within(sum / 200, 40'000, 0.1));
}

TEST_CASE("a target that cannot be met leaves prefill a sixteenth of a step") {
  PrefillBudget budget(8192, 0.75, 3'000);
  Device device{5'000, 20};
  settled_us(budget, device);
  CHECK(budget.limit() == 512);
  CHECK(PrefillBudget(64, 0.75, 1).limit() == 16);
  CHECK(PrefillBudget(8, 0.75, 1).limit() == 8);
}

TEST_CASE("a target that is always met allows whole steps") {
  PrefillBudget budget(2048, 0.75, 1'000'000);
  Device device{5'000, 20};
  settled_us(budget, device);
  CHECK(budget.limit() == 2048);
}

TEST_CASE("steps of unknown length, or in which nobody decodes, say nothing") {
  PrefillBudget budget(8192, 0.75, 30'000);
  Device device{5'000, 20};
  settled_us(budget, device);
  const int before = budget.limit();
  for (int i = 0; i < 100; ++i) {
    budget.observe(before, 8, 0);
    budget.observe(8192, 0, 900'000);
    budget.observe(0, 0, 10);
  }
  CHECK(budget.limit() == before);
}

TEST_CASE("equal steps give equal limits") {
  PrefillBudget one(8192, 0.75, 30'000);
  PrefillBudget other(8192, 0.75, 30'000);
  Device device{5'000, 20, 0.3, 20};
  bool equal = true;
  for (int i = 0; i < 1000; ++i) {
    const int tokens = i % 3 == 0 ? one.limit() : 0;
    const std::int64_t elapsed_us = device.run(tokens);
    one.observe(tokens, 8, elapsed_us);
    other.observe(tokens, 8, elapsed_us);
    equal = equal && one.limit() == other.limit();
  }
  CHECK(equal);
}
