// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

namespace tokenspeed::cpu {
namespace {

// Why not OpenMP: its passive barrier waits for every thread to be woken and scheduled, which costs
// tens of microseconds a call (a decode step has over a hundred), and its active one burns a core
// that the engine's loop needs. Here a thread looks for work for a moment after its last piece,
// then sleeps; and a join waits only for threads that took a piece. It also keeps this library free
// of any load order with torch's own OpenMP runtime.
constexpr int kSpins = 2000;     // looks for work before it sleeps, about 50 us
constexpr int kJoinSpins = 300;  // looks at a running piece before it yields the core, about 6 us
constexpr int kMaxThreads = 256;

// state: generation in the upper half, kOpen while pieces may be taken, threads inside below it.
constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kInside = kOpen - 1;
constexpr uint64_t kGeneration = uint64_t{1} << 32;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

thread_local int limit = kMaxThreads;  // of calls of this thread

class Pool {
 public:
  int threads() const { return threads_.load(std::memory_order_relaxed); }

  void set_threads(int threads) {
    std::lock_guard<std::mutex> use(use_);
    threads = threads < 1 ? 1 : threads > kMaxThreads ? kMaxThreads : threads;
    for (; started_ < threads - 1; ++started_) {
      std::thread(&Pool::loop, this, started_).detach();
    }
    threads_.store(threads, std::memory_order_relaxed);
  }

  void run(int64_t items, int64_t grain, Work work, const void* context) {
    std::unique_lock<std::mutex> use(use_, std::try_to_lock);
    if (!use.owns_lock()) return work(context, 0, items);
    work_ = work, context_ = context, items_ = items, grain_ = grain;
    next_.store(0, std::memory_order_relaxed);
    helpers_.store(pool_threads() - 1, std::memory_order_relaxed);
    open();
    take_pieces();
    close();
  }

  // In a child of fork no thread but the caller exists. The mutex may be held by one that is gone.
  void restart_in_child() {
    const int threads = threads_.load();
    new (this) Pool();
    set_threads(threads);
  }

 private:
  // Threads beside the caller that the open call may use.
  int helpers() const { return helpers_.load(std::memory_order_relaxed); }

  void open() {
    const uint64_t generation =
        (state_.load(std::memory_order_relaxed) & ~(kGeneration - 1)) + kGeneration;
    state_.store(generation | kOpen);
    if (sleeping_.load() == 0) return;
    std::lock_guard<std::mutex> lock(sleep_);
    wake_.notify_all();
  }

  void close() {
    state_.fetch_and(~kOpen);
    for (int spins = 0; state_.load(std::memory_order_acquire) & kInside; ++spins) {
      if (spins < kJoinSpins)
        relax();
      else
        sched_yield();
    }
  }

  void take_pieces() {
    for (;;) {
      const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
      if (begin >= items_) return;
      const int64_t end = begin + grain_ < items_ ? begin + grain_ : items_;
      work_(context_, begin, end);
    }
  }

  // Joins the open call, unless `seen` is it. The exchange makes "open" and "inside" one decision.
  bool enter(uint64_t& seen) {
    uint64_t state = state_.load(std::memory_order_acquire);
    while ((state & kOpen) && state / kGeneration != seen) {
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {
        seen = state / kGeneration;
        return true;
      }
    }
    return false;
  }

  void loop(int index) {
    uint64_t seen = 0;
    for (int spins = 0;;) {
      if (index < helpers() && enter(seen)) {
        // Asked again: the first answer may be of the call before, this one is of the call joined.
        if (index < helpers()) take_pieces();
        state_.fetch_sub(1, std::memory_order_release);
        spins = 0;
      } else if (++spins < kSpins) {
        relax();
      } else {
        sleep(index, seen);
        spins = 0;
      }
    }
  }

  void sleep(int index, uint64_t seen) {
    std::unique_lock<std::mutex> lock(sleep_);
    sleeping_.fetch_add(1);
    wake_.wait(lock, [&] {
      const uint64_t state = state_.load();
      return index < helpers() && (state & kOpen) && state / kGeneration != seen;
    });
    sleeping_.fetch_sub(1);
  }

  std::mutex use_;
  std::mutex sleep_;
  std::condition_variable wake_;
  std::atomic<int> threads_{1};
  std::atomic<int> helpers_{0};
  std::atomic<int> sleeping_{0};
  int started_ = 0;
  Work work_ = nullptr;
  const void* context_ = nullptr;
  int64_t items_ = 0;
  int64_t grain_ = 1;
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int64_t> next_{0};
};

// Never destroyed: its threads are detached and outlive static destruction.
Pool& pool() {
  static Pool* instance = [] {
    auto* made = new Pool();
    pthread_atfork(nullptr, nullptr, [] { pool().restart_in_child(); });
    return made;
  }();
  return *instance;
}

struct Buffer {
  float* data = nullptr;
  int64_t floats = 0;
  ~Buffer() { std::free(data); }
};

}  // namespace

void pool_set_threads(int threads) { pool().set_threads(threads); }

int pool_threads() {
  const int threads = pool().threads();
  return threads < limit ? threads : limit;
}

ThreadLimit::ThreadLimit(int threads) : before_(limit) { limit = threads < 1 ? 1 : threads; }
ThreadLimit::~ThreadLimit() { limit = before_; }

void pool_run(int64_t items, int64_t grain, Work work, const void* context) {
  pool().run(items, grain, work, context);
}

float* scratch(Scratch use, int64_t floats) {
  thread_local Buffer buffers[static_cast<int>(Scratch::kCount)];
  Buffer& buffer = buffers[static_cast<int>(use)];
  if (buffer.floats < floats) {
    const int64_t wanted = (floats + floats / 4 + 15) / 16 * 16;
    std::free(buffer.data);
    buffer.data =
        static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(wanted) * sizeof(float)));
    buffer.floats = buffer.data ? wanted : 0;
  }
  return buffer.data;
}

}  // namespace tokenspeed::cpu
