// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// A small persistent thread pool for kernels.

#include <cstdint>

namespace tokenspeed::cpu {

// Work of a parallel call: items [begin, end) of it.
using Work = void (*)(const void* context, int64_t begin, int64_t end);

// Sets how many threads a call may use, the caller included. Safe at any time.
void pool_set_threads(int threads);
// Threads that a call of this thread may use.
int pool_threads();

// While it lives, calls of this thread use at most so many threads.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  const int before_;
};

// Runs items [0, items) in pieces of `grain`, on the caller and on whichever pool threads come in
// time, and returns when all are done. The caller never waits for a thread that has not started:
// on a busy machine it does the work alone instead of waiting to be scheduled beside it.
// A call made while another thread uses the pool runs on its caller alone.
void pool_run(int64_t items, int64_t grain, Work work, const void* context);

// As above for a callable `void(int64_t begin, int64_t end)`. Must not throw.
template <class Callable>
void parallel(int64_t items, int64_t grain, const Callable& callable) {
  if (items <= grain || pool_threads() == 1) {
    if (items > 0) callable(int64_t{0}, items);
    return;
  }
  pool_run(
      items, grain,
      [](const void* context, int64_t begin, int64_t end) {
        (*static_cast<const Callable*>(context))(begin, end);
      },
      &callable);
}

// Scratch of the calling thread, 64-byte aligned, at least `floats` long, kept between calls.
// Each `use` is a buffer of its own. Null when memory is exhausted.
enum class Scratch {
  kPackedRows,
  kPartials,
  kQueries,
  kTile,
  kCandidates,
  kHidden,
  kProduct,
  kCount
};
float* scratch(Scratch use, int64_t floats);

}  // namespace tokenspeed::cpu
