/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The TokenSpeed authors
 *
 * rms_norm@1: x [..., H], weight [H], eps -> [..., H]. */
#include <math.h>

#include <tokenspeed/kernel.h>

enum { X, WEIGHT, RESULT }; /* the tensors of a call, as the op's page lists them */
enum { EPS };               /* its scalars */

static void accept(const ts_site* site, ts_verdict* verdict) {
  if (strcmp(site->device_type, "cpu")) {
    ts_decline(verdict, "runs on the CPU; the site is on %s", site->device_type);
  } else if (strcmp(site->dtype, "float32")) {
    ts_decline(verdict, "computes in float32; the site wants %s", site->dtype);
  } else {
    ts_accept(verdict, 120, "one pass in C over rows of any strides");
  }
}

static void norm_row(const float* x, int64_t stride, const float* weight, int64_t weight_stride,
                     double eps, float* out, int64_t hidden) {
  double squares = 0;
  float scale;
  int64_t i;
  for (i = 0; i < hidden; ++i) squares += (double)x[i * stride] * x[i * stride];
  scale = (float)(1 / sqrt(squares / (double)hidden + eps));
  for (i = 0; i < hidden; ++i) out[i] = x[i * stride] * scale * weight[i * weight_stride];
}

/* The row that is the number-th of all, in the order of the dimensions. */
static const float* find_row(const ts_tensor* x, int64_t number) {
  const float* row = (const float*)ts_data(x);
  int32_t d;
  for (d = x->ndim - 2; d >= 0; --d) {
    row += number % x->shape[d] * x->strides[d];
    number /= x->shape[d];
  }
  return row;
}

static int64_t count_rows(const ts_tensor* x) {
  int64_t rows = 1;
  int32_t d;
  for (d = 0; d < x->ndim - 1; ++d) rows *= x->shape[d];
  return rows;
}

static int run(const ts_call* call) {
  const ts_tensor *x = call->tensors[X], *weight = call->tensors[WEIGHT];
  float* out = (float*)ts_data(call->tensors[RESULT]);
  int64_t hidden, rows, r;
  if (!ts_is_dtype(x, TS_FLOAT, 32) || !ts_is_dtype(weight, TS_FLOAT, 32)) {
    return ts_fail(&call->error, TS_INVALID, "x and weight must be float32");
  }
  if (x->ndim < 2 || weight->ndim != 1 || weight->shape[0] != x->shape[x->ndim - 1]) {
    return ts_fail(&call->error, TS_INVALID, "x must be [..., H] and weight [H]");
  }
  hidden = weight->shape[0];
  rows = count_rows(x);
  for (r = 0; r < rows; ++r) {
    norm_row(find_row(x, r), x->strides[x->ndim - 1], (const float*)ts_data(weight),
             weight->strides[0], call->scalars[EPS].as.f, out + r * hidden, hidden);
  }
  return TS_OK;
}

/* 100 us are about as many elements. */
static int is_long(const ts_call* call) {
  const ts_tensor* x = call->tensors[X];
  return x->ndim > 0 && count_rows(x) * x->shape[x->ndim - 1] > 100000;
}

static const ts_kernel norm = {TS_HEADER(ts_kernel), "rms_norm@1", "acme-c", accept, run,
                               is_long,              NULL};
static const ts_kernel* const kernels[] = {&norm};
static const ts_library library = TS_LIBRARY(NULL, NULL, kernels, 1);

const ts_library* ts_library_table(void) { return &library; }
