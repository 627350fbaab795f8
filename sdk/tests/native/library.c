/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The TokenSpeed authors
 *
 * A library for the tests of the border. Macros make variants of it that do not fit. */
#include <math.h>
#include <time.h>

#include <tokenspeed/kernel.h>

#ifndef LIBRARY_ABI
#define LIBRARY_ABI TS_ABI
#endif
#ifndef KERNEL_SIZE
#define KERNEL_SIZE sizeof(ts_kernel)
#endif
#ifndef OP
#define OP "silu_and_mul@1"
#endif
#ifdef UNDEFINED
void not_defined_anywhere(void);
#endif

static float at(const ts_tensor* t, int64_t row, int64_t column) {
  return ((const float*)ts_data(t))[row * t->strides[0] + column * t->strides[1]];
}

/* ---- silu_and_mul@1: any strides, and failures by width ---- */

static void accept_silu(const ts_site* site, ts_verdict* verdict) {
  if (strcmp(site->dtype, "float32")) {
    ts_decline(verdict, "wants float32 on %s, got %s", site->arch, site->dtype);
    return;
  }
  ts_accept(verdict, 7, "inter %d, rows %d to %d, %d units, first feature %s",
            (int)ts_int_trait(site, "inter", -1), (int)site->rows_min, (int)site->rows_max,
            site->units, site->num_features ? site->features[0] : "none");
}

static int run_silu(const ts_call* call) {
  const ts_tensor *x = call->tensors[0], *out = call->tensors[1];
  const int64_t inter = out->shape[1];
  int64_t r, i;
#ifdef UNDEFINED
  not_defined_anywhere();
#endif
  if (!ts_is_dtype(x, TS_FLOAT, 32)) return ts_fail(&call->error, TS_INVALID, "x is no float32");
  if (inter == 13) return ts_fail(&call->error, TS_INVALID, "width %d is unlucky", (int)inter);
  if (inter == 14) return ts_fail(&call->error, TS_NO_MEMORY, "no room");
  if (inter == 15) return 77;
  if (inter == 16) return ts_fail(&call->error, TS_FAILED, "%2000d", 1);
  for (r = 0; r < x->shape[0]; ++r) {
    for (i = 0; i < inter; ++i) {
      const float gate = at(x, r, i);
      ((float*)ts_data(out))[r * inter + i] = gate / (1 + expf(-gate)) * at(x, r, inter + i);
    }
  }
  return TS_OK;
}

/* ---- linear@1: a packed weight, an optional bias ---- */

static void accept_any(const ts_site* site, ts_verdict* verdict) {
  (void)site;
  ts_accept(verdict, 1, "any");
}

static int pack_linear(ts_pack* pack) {
  const ts_tensor* weight = pack->weight;
  int64_t n, k;
  if (weight->shape[0] == 13) return ts_fail(&pack->error, TS_INVALID, "13 rows are unlucky");
  if (!pack->packed) {
    pack->ndim = 2;
    pack->shape[0] = weight->shape[1];
    pack->shape[1] = weight->shape[0];
    pack->dtype = weight->dtype;
#ifdef PACK_NDIM
    pack->ndim = PACK_NDIM;
#endif
#ifdef PACK_SHAPE
    pack->shape[0] = PACK_SHAPE;
#endif
#ifdef PACK_CODE
    pack->dtype.code = PACK_CODE;
#endif
    return TS_OK;
  }
  for (n = 0; n < weight->shape[0]; ++n) {
    for (k = 0; k < weight->shape[1]; ++k) {
      ((float*)ts_data(pack->packed))[k * weight->shape[0] + n] = at(weight, n, k);
    }
  }
  return TS_OK;
}

static int run_linear(const ts_call* call) {
  const ts_tensor *x = call->tensors[0], *weight = call->tensors[1], *bias = call->tensors[2];
  const ts_tensor* out = call->tensors[3];
  int64_t r, n, k;
  for (r = 0; r < out->shape[0]; ++r) {
    for (n = 0; n < out->shape[1]; ++n) {
      float sum = bias ? ((const float*)ts_data(bias))[n] : 0;
      for (k = 0; k < x->shape[1]; ++k) sum += at(x, r, k) * at(weight, k, n);
      ((float*)ts_data(out))[r * out->shape[1] + n] = sum;
    }
  }
  return TS_OK;
}

/* ---- attention_decode@1: says what it was given ---- */

static int run_decode(const ts_call* call) {
  float* out = (float*)ts_data(call->tensors[call->num_tensors - 1]);
  out[0] = (float)call->num_tensors;
  out[1] = (float)call->num_scalars;
  out[2] = (float)call->scalars[0].as.f;
  out[3] = (float)call->scalars[1].kind;
  out[4] = (float)call->threads;
  out[5] = call->stream ? 1 : 0;
  out[6] = (float)call->tensors[1]->ndim; /* k_cache */
  out[7] = (float)((const int32_t*)ts_data(call->tensors[5]))[0]; /* kv_len */
  out[8] = (float)ts_int_trait(call->site, "kv_heads", -1);
  out[9] = call->size == sizeof *call && call->abi == TS_ABI;
  return TS_OK;
}

/* ---- rope_kv_write@1: refuses with the numbers of those that were not given ---- */

static int run_missing(const ts_call* call) {
  char missing[128] = "";
  int32_t i;
  for (i = 0; i < call->num_tensors; ++i) {
    const size_t used = strlen(missing);
    if (!call->tensors[i]) snprintf(missing + used, sizeof missing - used, " %d", (int)i);
  }
  return ts_fail(&call->error, TS_INVALID, "missing:%s, eps %g, interleaved %d", missing,
                 call->scalars[0].as.f, (int)call->scalars[1].as.i);
}

static int never(const ts_call* call) {
  (void)call;
  return 0;
}

/* ---- gather_rows@1: waits up to 0.3 s for another thread to write x[0] ---- */

static int more_than_one(const ts_call* call) { return call->tensors[1]->shape[0] > 1; }

static int run_wait(const ts_call* call) {
  const volatile float* flag = (const volatile float*)ts_data(call->tensors[0]);
  const struct timespec millisecond = {0, 1000000};
  int i;
  for (i = 0; i < 300 && *flag == 0; ++i) nanosleep(&millisecond, NULL);
  *(float*)ts_data(call->tensors[2]) = *flag;
  return TS_OK;
}

#define START (uint32_t)(KERNEL_SIZE), LIBRARY_ABI
static const ts_kernel silu = {START, OP, "c", accept_silu, run_silu, NULL, NULL};
static const ts_kernel linear = {START,      "linear@1", "c",        accept_any,
                                 run_linear, never,      pack_linear};
static const ts_kernel decode = {START, "attention_decode@1", "c", accept_any, run_decode, never,
                                 NULL};
static const ts_kernel gather = {START, "gather_rows@1", "c", accept_any, run_wait, more_than_one,
                                 NULL};
static const ts_kernel rope = {START,       "rope_kv_write@1", "c", accept_any,
                               run_missing, never,             NULL};
static const ts_kernel* const kernels[] = {&silu, &linear, &decode, &gather, &rope};

static const ts_library library = {sizeof library, LIBRARY_ABI, TS_COMPILER, TS_CXX, "99.9", NULL,
                                   ts_invoke,      kernels,     5,           0};

#ifdef NO_SYMBOL
TS_EXPORT const ts_library* another_name(void) { return &library; }
#else
const ts_library* ts_library_table(void) {
#ifdef NO_TABLE
  return NULL;
#else
  return &library;
#endif
}
#endif
