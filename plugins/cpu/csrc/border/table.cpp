// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// The kernels of this library as the engine sees them: what they accept, what takes long.

#include <tokenspeed/kernel.h>

#include <array>
#include <cstring>

#include "../library.h"
#include "arguments.h"
#include "calls.h"

namespace tokenspeed::cpu {
namespace {

constexpr int kScore = 100;

// ---- What is accepted ---------------------------------------------------------------------------

// Writes why a float32 site on the CPU cannot be served; true if so.
using Refuses = bool (*)(const ts_site* site, ts_verdict* verdict);

bool refuses_nothing(const ts_site*, ts_verdict*) { return false; }

bool refuses_odd_rotary(const ts_site* site, ts_verdict* verdict) {
  const int64_t rotary = ts_int_trait(site, "rotary", 0);
  if (rotary % 2 == 0) return false;
  ts_decline(verdict, "needs an even rotary size, not %lld", static_cast<long long>(rotary));
  return true;
}

bool refuses_attention(const ts_site* site, ts_verdict* verdict) {
  constexpr int64_t kStep = 16, kMost = 256;
  const int64_t head_dim = ts_int_trait(site, "head_dim", 0);
  if (head_dim < 1 || head_dim % kStep || head_dim > kMost) {
    ts_decline(verdict, "needs a head size in steps of 16 up to 256, not %lld",
               static_cast<long long>(head_dim));
    return true;
  }
  const ts_value* window = ts_find_trait(site, "window");
  if (!window || window->kind == TS_NONE) return false;
  ts_decline(verdict, "has no sliding window");
  return true;
}

bool serves(const ts_site* site, ts_verdict* verdict, Refuses refuses) {
  if (std::strcmp(site->device_type, "cpu")) {
    ts_decline(verdict, "runs on the CPU; the site is on %s", site->device_type);
  } else if (std::strcmp(site->dtype, "float32")) {
    ts_decline(verdict, "computes in float32; the site wants %s", site->dtype);
  } else if (!kernels()) {
    ts_decline(verdict, "was built for no instruction set that this CPU runs");
  } else {
    return !refuses(site, verdict);
  }
  return false;
}

template <Refuses refuses>
void accept(const ts_site* site, ts_verdict* verdict) {
  if (serves(site, verdict, refuses)) {
    ts_accept(verdict, kScore, "C++ compiled for %s", site->arch);
  }
}

void accept_linear(const ts_site* site, ts_verdict* verdict) {
  if (serves(site, verdict, refuses_nothing)) {
    ts_accept(verdict, kScore,
              "packed once, reads a weight at the speed of memory; C++ compiled for %s",
              site->arch);
  }
}

void accept_linear_int8(const ts_site* site, ts_verdict* verdict) {
  if (!serves(site, verdict, refuses_nothing)) return;
  const bool exact = !std::strcmp(isa(), "v4_vnni");
  ts_accept(verdict, kScore, "multiplies %s; C++ compiled for %s",
            exact ? "bytes by AVX-512 VNNI" : "codes as floats, which this CPU has", site->arch);
}

// ---- What takes over 100 us -------------------------------------------------------------------

constexpr int64_t kBytes = 1000000;  // a call that moves more

int64_t elements(const ts_call* call, int index) {
  return index < call->num_tensors ? elements_of(call->tensors[index]) : 0;
}

// Tensor `index` is moved so many times, counted in bytes of an element.
template <int index, int bytes>
int moves_much(const ts_call* call) {
  return elements(call, index) * bytes > kBytes;
}

// Reading a column of panels fetches a cache line for each element.
int embeds_much(const ts_call* call) { return elements(call, 2) * 64 > kBytes; }

int rotates_much(const ts_call* call) {
  return (elements(call, 0) + elements(call, 1)) * 8 > kBytes;
}

// A multiply-add costs as much as moving a quarter of a byte.
template <int index>
int multiplies_much(const ts_call* call) {
  const int64_t weight = elements(call, index);
  const ts_tensor* x = call->tensors[0];
  return weight * 4 > kBytes || (x->ndim == 2 && x->shape[0] * weight > 4 * kBytes);
}

// Eight-bit products cost a quarter of that at most.
template <int index>
int multiplies_much_int8(const ts_call* call) {
  const int64_t weight = elements(call, index);
  const ts_tensor* x = call->tensors[0];
  return weight > kBytes || (x->ndim == 2 && x->shape[0] * weight > 8 * kBytes);
}

int attends_much(const ts_call* call) {
  const ts_tensor *cache = call->tensors[1], *lengths = call->tensors[5];
  if (cache->ndim != 4 || !ts_is_dtype(lengths, TS_SIGNED, 32)) return 0;  // refused when run
  const auto* length = static_cast<const int32_t*>(ts_data(lengths));
  int64_t tokens = 0;
  for (int64_t r = 0; r < elements_of(lengths); ++r) tokens += length[r];
  return tokens * cache->shape[1] * cache->shape[3] * 8 > kBytes;
}

int always(const ts_call*) { return 1; }

// An arg-max of so many logits takes 100 us; a draw takes 16 times as long.
int samples_much(const ts_call* call) {
  constexpr int64_t kGreedy = 250000, kDraw = 16;
  const ts_tensor* temperature = call->tensors[1];
  if (!ts_is_dtype(temperature, TS_FLOAT, 32)) return 0;  // refused when run
  bool draws = false;
  const auto* values = static_cast<const float*>(ts_data(temperature));
  for (int64_t r = 0; r < elements_of(temperature); ++r) draws |= values[r] != 0;
  return elements(call, 0) * (draws ? kDraw : 1) > kGreedy;
}

// Logits of rows whose slot wants them kept or read: tensors `slot_index` and `wanted_index`. Those
// that do not fit are refused when run.
template <int slot_index, int wanted_index>
int64_t wanted_logits(const ts_call* call) {
  const ts_tensor *slot = call->tensors[slot_index], *wanted = call->tensors[wanted_index];
  const ts_tensor* logits = call->tensors[0];
  if (!ts_is_dtype(slot, TS_SIGNED, 64) || !ts_is_dtype(wanted, TS_SIGNED, 32)) return 0;
  if (wanted->ndim != 2 || logits->ndim != 2) return 0;
  int64_t rows = 0;
  for (int64_t r = 0; r < elements_of(slot); ++r) {
    const int64_t s = static_cast<const int64_t*>(ts_data(slot))[r];
    if (s < 0 || s >= wanted->shape[0]) continue;
    rows += static_cast<const int32_t*>(ts_data(wanted))[s * wanted->strides[0]] != 0;
  }
  return rows * logits->shape[1];
}

// A row of 50,000 takes 60 us.
int reads_much(const ts_call* call) { return wanted_logits<2, 3>(call) > 80000; }

// A pass over a row takes some 20 us, where its slot asks for one; biases alone are few. Settings of
// slots stand from argument `First` on.
template <int First>
int adjusts_much(const ts_call* call) {
  constexpr int64_t kAdjusted = 250000;
  const ts_tensor *slot = call->tensors[2], *p = call->tensors[First + 1], *logits = call->tensors[0];
  if (!ts_is_dtype(slot, TS_SIGNED, 64) || !ts_is_dtype(p, TS_FLOAT, 32)) return 0;
  if (p->ndim != 2 || p->shape[1] != 3 || logits->ndim != 2) return 0;
  int64_t rows = 0;
  for (int64_t r = 0; r < elements_of(slot); ++r) {
    const int64_t s = static_cast<const int64_t*>(ts_data(slot))[r];
    if (s < 0 || s >= p->shape[0]) continue;
    const float* penalties = static_cast<const float*>(ts_data(p)) + s * p->strides[0];
    rows += penalties[0] != 0 || penalties[1] != 0 || penalties[2] != 0;
  }
  return rows * logits->shape[1] + wanted_logits<2, First>(call) > kAdjusted;
}

// A mask touches a row of the logits, whatever number of rows there is.
int masks_much(const ts_call* call) {
  const ts_tensor* logits = call->tensors[0];
  return logits->ndim == 2 && logits->shape[1] * elements(call, 2) * 8 > kBytes;
}

// ---- The table ----------------------------------------------------------------------------------

constexpr ts_kernel kernel(const char* op, decltype(ts_kernel::accept) accept,
                           decltype(ts_kernel::run) run, decltype(ts_kernel::is_long) is_long,
                           decltype(ts_kernel::pack) pack = nullptr) {
  return {TS_HEADER(ts_kernel), op, "cpu", accept, run, is_long, pack};
}

constexpr ts_kernel kKernels[] = {
    kernel("embedding@1", accept<refuses_nothing>, run_embedding, embeds_much, pack_panels),
    kernel("linear@1", accept_linear, run_linear, multiplies_much<1>, pack_panels),
    kernel("linear_int8@1", accept_linear_int8, run_linear_int8, multiplies_much_int8<1>,
           pack_int8_panels),
    kernel("add_norm_linear@1", accept_linear, run_add_norm_linear, multiplies_much<4>,
           pack_panels),
    kernel("add_norm_linear_int8@1", accept_linear_int8, run_add_norm_linear_int8,
           multiplies_much_int8<4>, pack_int8_panels),
    kernel("rms_norm@1", accept<refuses_nothing>, run_rms_norm, moves_much<0, 8>),
    kernel("add_rms_norm@1", accept<refuses_nothing>, run_add_rms_norm, moves_much<0, 16>),
    kernel("rope@1", accept<refuses_odd_rotary>, run_rope, rotates_much),
    kernel("kv_write@1", accept<refuses_nothing>, run_kv_write, moves_much<0, 16>),
    kernel("rope_kv_write@1", accept<refuses_odd_rotary>, run_rope_kv_write, rotates_much),
    kernel("attention_prefill@1", accept<refuses_attention>, run_attention_prefill, always),
    kernel("attention_decode@1", accept<refuses_attention>, run_attention_decode, attends_much),
    kernel("silu_and_mul@1", accept<refuses_nothing>, run_silu_and_mul, moves_much<0, 8>),
    kernel("gather_rows@1", accept<refuses_nothing>, run_gather_rows, moves_much<2, 8>),
    kernel("adjust_logits@1", accept<refuses_nothing>, run_adjust_logits, adjusts_much<4>),
    kernel("adjust_logits_verify@1", accept<refuses_nothing>, run_adjust_logits_verify,
           adjusts_much<5>),
    kernel("sample@1", accept<refuses_nothing>, run_sample, samples_much),
    kernel("record_tokens@1", accept<refuses_nothing>, run_record_tokens, nullptr),
    kernel("logprobs@1", accept<refuses_nothing>, run_logprobs, reads_much),
    kernel("mask_logits@1", accept<refuses_nothing>, run_mask_logits, masks_much),
};

constexpr auto kPointers = [] {
  std::array<const ts_kernel*, std::size(kKernels)> pointers{};
  for (size_t i = 0; i < pointers.size(); ++i) pointers[i] = &kKernels[i];
  return pointers;
}();

const ts_library kLibrary = TS_LIBRARY(nullptr, nullptr, kPointers.data(), kPointers.size());

}  // namespace
}  // namespace tokenspeed::cpu

const ts_library* ts_library_table(void) { return &tokenspeed::cpu::kLibrary; }
