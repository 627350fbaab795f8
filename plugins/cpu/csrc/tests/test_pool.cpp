// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// The thread pool, for ThreadSanitizer: all that calls write and read here is plain memory, so an
// ordering that the pool fails to give is a data race that it reports.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "../pool.h"

namespace tokenspeed::cpu {
namespace {

using Numbers = std::vector<int64_t>;

// Adds `amount` to every item, each in one piece of the call.
void add(Numbers& numbers, int64_t grain, int64_t amount) {
  parallel(static_cast<int64_t>(numbers.size()), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) numbers[static_cast<size_t>(i)] += amount;
  });
}

// `calls` calls one after the other, of several sizes; whether each item got all of them.
bool adds_up(int calls) {
  bool good = true;
  for (const size_t size : {1, 7, 64, 1000}) {
    Numbers numbers(size, 0);
    for (int i = 1; i <= calls; ++i) {
      add(numbers, 3, i);
      numbers[size / 2] += 1;  // between two calls the caller owns all of it
    }
    const int64_t sum = int64_t{calls} * (calls + 1) / 2;
    numbers[size / 2] -= calls;
    good &= std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n == sum; });
  }
  return good;
}

TEST_CASE("every item is done once, and the caller sees it") {
  pool_set_threads(4);
  CHECK(adds_up(300));
}

TEST_CASE("helpers that fell asleep come back") {
  pool_set_threads(3);
  Numbers numbers(256, 0);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    add(numbers, 1, 1);
  }
  CHECK(std::all_of(numbers.begin(), numbers.end(), [](int64_t n) { return n == 20; }));
}

TEST_CASE("callers at the same time do not mix, while the number of threads changes") {
  std::atomic<int> good{0};
  std::atomic<bool> ended{false};
  const auto resize = [&] {
    for (int threads = 1; !ended.load(); threads = threads % 6 + 1) {
      pool_set_threads(threads);
      std::this_thread::yield();
    }
  };
  std::thread resizers[] = {std::thread(resize), std::thread(resize)};
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) callers.emplace_back([&] { good += adds_up(150); });
  for (std::thread& caller : callers) caller.join();
  ended = true;
  for (std::thread& resizer : resizers) resizer.join();
  CHECK(good == 3);
}

TEST_CASE("threads that end leave the pool to others") {
  pool_set_threads(3);
  for (int i = 0; i < 20; ++i) {
    bool good = false;
    std::thread([&] { good = adds_up(5); }).join();
    CHECK(good);
  }
}

TEST_CASE("scratch is the thread's own, and grows") {
  pool_set_threads(4);
  std::atomic<int> wrong{0};
  for (int64_t floats = 16; floats <= 1024; floats *= 2) {
    parallel(64, 1, [&](int64_t begin, int64_t) {
      float* mine = scratch(Scratch::kTile, floats);
      std::fill(mine, mine + floats, static_cast<float>(begin));
      std::this_thread::yield();
      wrong += std::any_of(mine, mine + floats,
                           [&](float f) { return f != static_cast<float>(begin); });
    });
  }
  CHECK(wrong == 0);
}

TEST_CASE("a call takes no more threads than its limit, whatever the call before took") {
  pool_set_threads(4);
  std::mutex lock;
  size_t most = 0;
  for (int i = 0; i < 300; ++i) {
    Numbers numbers(64, 0);
    add(numbers, 1, 1);  // with all of them
    ThreadLimit limit(2);
    std::set<std::thread::id> seen;
    parallel(16, 1, [&](int64_t, int64_t) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));  // time for one more to come
      std::lock_guard<std::mutex> hold(lock);
      seen.insert(std::this_thread::get_id());
    });
    most = std::max(most, seen.size());
  }
  CHECK(most <= 2);
}

}  // namespace
}  // namespace tokenspeed::cpu
