// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// The choice of an instruction set, and what the platform calls.

#include <atomic>
#include <cstring>

#include "library.h"
#include "pool.h"

#define TS_PLATFORM extern "C" __attribute__((visibility("default")))

namespace tokenspeed::cpu {

// TS_ISAS lists what this library was built for, best first, as X(name).
#define X(name)      \
  namespace name {   \
  Kernels kernels(); \
  }
TS_ISAS
#undef X

namespace {

struct Isa {
  const char* name;
  bool (*runs)();
  Kernels (*kernels)();
};

#if defined(__x86_64__)
// The levels of the x86-64 psABI by the features that tell them apart on processors that exist; GCC
// knows the levels' own names from 12 on only.
bool has_v2() {
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") &&
         __builtin_cpu_supports("popcnt");
}
bool has_v3() {
  return has_v2() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
bool has_v4_vnni() { return has_v4() && __builtin_cpu_supports("avx512vnni"); }
#endif

bool runs_here(const char* name) {
#if defined(__x86_64__)
  if (!std::strcmp(name, "v4_vnni")) return has_v4_vnni();
  if (!std::strcmp(name, "v4")) return has_v4();
  if (!std::strcmp(name, "v3")) return has_v3();
  if (!std::strcmp(name, "v2")) return has_v2();
#endif
  return !std::strcmp(name, "generic");
}

#define X(name) {#name, [] { return runs_here(#name); }, name::kernels},
const Isa kIsas[] = {TS_ISAS};
#undef X

struct Chosen {
  const Isa* isa;
  Kernels kernels;
};

// Replaced whole by tests that run every instruction set; never freed.
std::atomic<const Chosen*>& chosen() {
  static std::atomic<const Chosen*> instance = []() -> const Chosen* {
    for (const Isa& isa : kIsas) {
      if (isa.runs()) return new Chosen{&isa, isa.kernels()};
    }
    return nullptr;
  }();
  return instance;
}

}  // namespace

const Kernels* kernels() {
  const Chosen* now = chosen().load();
  return now ? &now->kernels : nullptr;
}

const char* isa() {
  const Chosen* now = chosen().load();
  return now ? now->isa->name : "";
}

}  // namespace tokenspeed::cpu

using namespace tokenspeed::cpu;

TS_PLATFORM const char* tokenspeed_cpu_isa() { return isa(); }

// The i-th instruction set of the library, or null behind the last.
TS_PLATFORM const char* tokenspeed_cpu_isa_name(int i) {
  return i >= 0 && i < static_cast<int>(sizeof kIsas / sizeof *kIsas) ? kIsas[i].name : nullptr;
}

// Switches the instruction set. For tests; not while a kernel runs.
TS_PLATFORM int tokenspeed_cpu_use_isa(const char* name) {
  for (const Isa& isa : kIsas) {
    if (std::strcmp(isa.name, name)) continue;
    if (!isa.runs()) return kUnsupported;
    chosen().store(new Chosen{&isa, isa.kernels()});
    return kOk;
  }
  return kUnsupported;
}

TS_PLATFORM void tokenspeed_cpu_set_threads(int threads) { pool_set_threads(threads); }
TS_PLATFORM int tokenspeed_cpu_threads() { return pool_threads(); }
