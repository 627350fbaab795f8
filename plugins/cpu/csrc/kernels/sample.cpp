// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// Draws one token per row of logits.

#include "../pool.h"
#include "kernels.h"
#include "philox.h"
#include "select.h"

namespace tokenspeed::cpu::TS_ISA {
namespace {

constexpr int64_t kBlock = 64;         // logits whose maximum is kept, to find the largest quickly
constexpr int64_t kFirstNucleus = 64;  // candidates first tried for top_p
constexpr int64_t kSortedAtOnce = 24;
constexpr int64_t kNoToken = -1;  // of a row whose largest logit is not finite
constexpr float kMinusInfinity = -__builtin_inff();

struct Row {
  const float* logits;
  int64_t vocab;
  float temperature, top_p, min_p;
  int64_t top_k;  // vocab: all
  uint64_t seed, position;
};

Row row_of(const SampleArgs& a, int64_t r) {
  const int64_t k = a.top_k[r];
  return {a.logits + r * a.logits_stride,
          a.vocab,
          a.temperature[r],
          a.top_p[r],
          min_of(a.min_p[r], 1.0f),
          k <= 0 || k > a.vocab ? a.vocab : k,
          static_cast<uint64_t>(a.seed[r]),
          static_cast<uint64_t>(a.position[r])};
}

TS_INLINE bool any(IntVec lanes) {
  int32_t found = 0;
  for (int i = 0; i < kWidth; ++i) found |= lanes[i];
  return found != 0;
}

struct Peak {
  float value;
  bool nan;
};

// Maximum of n logits; with `blocks`, also of every kBlock of them.
Peak find_peak(const float* x, int64_t n, float* blocks) {
  constexpr int kVecs = kBlock / kWidth;
  Vec top = splat(kMinusInfinity);
  IntVec nan = {};
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    Vec block = splat(kMinusInfinity);
    for (int j = 0; j < kVecs; ++j) {
      const Vec v = load(x + i + j * kWidth);
      nan |= v != v;
      block = max_of(v, block);
    }
    if (blocks) blocks[i / kBlock] = maximum(block);
    top = max_of(block, top);
  }
  Peak peak{maximum(top), any(nan)};
  float last = kMinusInfinity;
  for (int64_t j = i; j < n; ++j) {
    peak.nan |= x[j] != x[j];
    last = max_of(x[j], last);
  }
  if (blocks && i < n) blocks[i / kBlock] = last;
  peak.value = max_of(last, peak.value);
  return peak;
}

int64_t find_first(const float* x, int64_t n, float value) {
  const Vec wanted = splat(value);
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    if (any(load(x + i) == wanted)) break;
  }
  while (i < n && x[i] != value) ++i;
  return i;
}

// -ln u for u = (w + 0.5) * 2^-32, also where u is so close to 1 that it has no float of its own.
TS_INLINE Vec exponential(UintVec w) {
  const IntVec signed_w = reinterpret_cast<IntVec>(w);
  const IntVec upper = signed_w >> 31;       // all ones where u >= 1/2
  const IntVec distance = signed_w ^ upper;  // to the nearer end of the range
  const Vec y = (__builtin_convertvector(distance, Vec) + 0.5f) * 0x1p-32f;
  return upper ? -log_of_one_plus(-y) : -log(y);
}

// Keeps the candidate that wins the exponential race: the largest weight / exponential.
struct Race {
  Vec best = {};
  UintVec ids = {};

  // Candidates of weight 0 never win.
  TS_INLINE void run(Vec weights, UintVec candidates, const Row& row) {
    // -ln u is at least 2^-33: most of a peaked row cannot win whatever it draws.
    if (!any(weights * 0x1p33f > best)) return;
    const Vec score = weights / exponential(philox(candidates, row.position, row.seed));
    const IntVec better = score > best;
    best = better ? score : best;
    ids = reinterpret_cast<UintVec>(better) ? candidates : ids;
  }

  int64_t winner() const {
    int lane = 0;
    for (int i = 1; i < kWidth; ++i) {
      if (best[i] > best[lane] || (best[i] == best[lane] && ids[i] < ids[lane])) lane = i;
    }
    return ids[lane];
  }
};

TS_INLINE UintVec lanes_from(int64_t first) {
  UintVec lanes;
  for (int i = 0; i < kWidth; ++i) lanes[i] = static_cast<uint32_t>(first + i);
  return lanes;
}

// Weights relative to the most likely token: its own is 1.
TS_INLINE Vec weights_of(Vec logits, float peak, float temperature) {
  return exp((logits - peak) / temperature);
}

TS_INLINE Vec load_padded(const float* x, int64_t i, int64_t n) {
  if (i + kWidth <= n) return load(x + i);
  Vec v = splat(kMinusInfinity);
  for (int lane = 0; lane < n - i; ++lane) v[lane] = x[i + lane];
  return v;
}

int64_t draw_from_all(const Row& row, float peak) {
  Race race;
  for (int64_t i = 0; i < row.vocab; i += kWidth) {
    const Vec w = weights_of(load_padded(row.logits, i, row.vocab), peak, row.temperature);
    race.run(w < splat(row.min_p) ? Vec{} : w, lanes_from(i), row);
  }
  return race.winner();
}

double mass_of_all(const Row& row, float peak) {
  double mass = 0;
  for (int64_t i = 0; i < row.vocab; i += kBlock) {
    Vec part = {};
    for (int64_t j = i; j < min_of(i + kBlock, row.vocab); j += kWidth) {
      part += weights_of(load_padded(row.logits, j, row.vocab), peak, row.temperature);
    }
    mass += sum(part);
  }
  return mass;
}

// A bound that at least `wanted` logits reach: so many blocks have a maximum that does.
float bound_of(const float* blocks, int64_t count, int64_t wanted, Candidate* space) {
  if (wanted > count / 2) return kMinusInfinity;
  for (int64_t i = 0; i < count; ++i) space[i] = make_candidate(blocks[i], i);
  sort_top(space, count, wanted);
  return logit_of(space[wanted - 1]);
}

// The `wanted` largest logits, sorted, ties by lower id.
void collect_top(const Row& row, const float* blocks, int64_t wanted, Candidate* out) {
  const int64_t count = (row.vocab + kBlock - 1) / kBlock;
  const float bound = bound_of(blocks, count, wanted, out);
  int64_t found = 0;
  for (int64_t b = 0; b < count; ++b) {
    if (blocks[b] < bound) continue;
    for (int64_t i = b * kBlock; i < min_of((b + 1) * kBlock, row.vocab); ++i) {
      out[found] = make_candidate(row.logits[i], i);
      found += row.logits[i] >= bound;
    }
  }
  sort_top(out, found, wanted);
}

// Logits of up to kWidth candidates; -inf behind the last.
TS_INLINE Vec logits_of(const Candidate* c, int64_t n) {
  Vec logits = splat(kMinusInfinity);
  for (int lane = 0; lane < min_of<int64_t>(kWidth, n); ++lane) logits[lane] = logit_of(c[lane]);
  return logits;
}

double mass_of(const Row& row, float peak, const Candidate* c, int64_t n) {
  double mass = 0;
  for (int64_t i = 0; i < n; i += kWidth) {
    mass += sum(weights_of(logits_of(c + i, n - i), peak, row.temperature));
  }
  return mass;
}

// Length of the shortest prefix of sorted candidates whose mass is at least `wanted`, at least 1;
// n + 1 when all are too few.
int64_t prefix_of(const Row& row, float peak, const Candidate* sorted, int64_t n, double wanted) {
  double mass = 0;
  for (int64_t i = 0; i < n; i += kWidth) {
    const Vec weights = weights_of(logits_of(sorted + i, n - i), peak, row.temperature);
    for (int lane = 0; lane < min_of<int64_t>(kWidth, n - i); ++lane) {
      mass += weights[lane];
      if (mass >= wanted) return i + lane + 1;
    }
  }
  return n + 1;
}

// Moves the candidates of that prefix to the front without sorting all: halves are cut off by mass.
int64_t select_mass(const Row& row, float peak, Candidate* c, int64_t n, double wanted) {
  int64_t first = 0, last = n;
  while (last - first > kSortedAtOnce) {
    const int64_t middle = first + partition(c + first, last - first);
    const double upper = mass_of(row, peak, c + first, middle - first);
    if (upper >= wanted) {
      last = middle;
    } else {
      first = middle;
      wanted -= upper;
    }
  }
  insertion_sort(c + first, last - first);
  return min_of(n, first + prefix_of(row, peak, c + first, last - first, wanted));
}

// The candidates that top_k and top_p leave, in any order; returns how many.
int64_t collect(const Row& row, float peak, const float* blocks, Candidate* out) {
  if (row.top_k < row.vocab) {
    collect_top(row, blocks, row.top_k, out);
    if (!(row.top_p < 1.0f)) return row.top_k;
    const double wanted = mass_of(row, peak, out, row.top_k) * row.top_p;
    return min_of(row.top_k, prefix_of(row, peak, out, row.top_k, wanted));
  }
  const double wanted = mass_of_all(row, peak) * row.top_p;
  const int64_t few = min_of(kFirstNucleus, row.vocab);
  collect_top(row, blocks, few, out);
  const int64_t kept = prefix_of(row, peak, out, few, wanted);
  if (kept <= few) return kept;
  for (int64_t i = 0; i < row.vocab; ++i) out[i] = make_candidate(row.logits[i], i);
  return select_mass(row, peak, out, row.vocab, wanted);
}

int64_t draw_from(const Row& row, float peak, const Candidate* kept, int64_t n) {
  Race race;
  for (int64_t i = 0; i < n; i += kWidth) {
    UintVec ids = {};
    for (int lane = 0; lane < min_of<int64_t>(kWidth, n - i); ++lane) {
      ids[lane] = static_cast<uint32_t>(id_of(kept[i + lane]));
    }
    const Vec w = weights_of(logits_of(kept + i, n - i), peak, row.temperature);
    race.run(w < splat(row.min_p) ? Vec{} : w, ids, row);
  }
  return race.winner();
}

int64_t sample_row(const Row& row, float* blocks, Candidate* space) {
  const bool greedy = row.temperature == 0.0f;
  const bool filtered = !greedy && (row.top_k < row.vocab || row.top_p < 1.0f);
  const Peak peak = find_peak(row.logits, row.vocab, filtered ? blocks : nullptr);
  const bool finite = peak.value - peak.value == 0.0f;
  if (peak.nan || !finite) return kNoToken;
  if (greedy) return find_first(row.logits, row.vocab, peak.value);
  if (!filtered) return draw_from_all(row, peak.value);
  const int64_t kept = collect(row, peak.value, blocks, space);
  return draw_from(row, peak.value, space, kept);
}

}  // namespace

int sample(const SampleArgs& a) {
  if (a.rows == 0) return kOk;
  if (a.vocab <= 0) return kUnsupported;
  const int64_t blocks = (a.vocab + kBlock - 1) / kBlock;
  const int64_t floats = (blocks + 15) / 16 * 16 + 2 * (a.vocab + kBlock);
  if (!scratch(Scratch::kCandidates, floats)) return kNoMemory;
  parallel(a.rows, 1, [&](int64_t begin, int64_t end) {
    float* memory = scratch(Scratch::kCandidates, floats);
    if (!memory) __builtin_trap();
    auto* space = reinterpret_cast<Candidate*>(memory + (blocks + 15) / 16 * 16);
    for (int64_t r = begin; r < end; ++r) a.out[r] = sample_row(row_of(a, r), memory, space);
  });
  return kOk;
}

}  // namespace tokenspeed::cpu::TS_ISA
