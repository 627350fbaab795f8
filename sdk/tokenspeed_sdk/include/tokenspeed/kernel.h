/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The TokenSpeed authors */
#ifndef TOKENSPEED_KERNEL_H_
#define TOKENSPEED_KERNEL_H_
/*
 * Kernels of the public ops as a shared library, in C99 or C++11 and later.
 *
 * A library exports one function, ts_library_table; everything else is reached through what it
 * returns. docs/contracts/native.md explains each field and holds an example.
 *
 * Versions. Every struct that crosses starts with its size and the ABI of whoever made it. A minor
 * only adds fields at the end of structs; a new major may change anything. An engine loads
 * libraries of its own major and of the same or an older minor: fields behind `size` count as zero.
 * What an engine hands to a library is therefore never shorter than the library knows it.
 *
 * Ownership. The table, the kernels and their strings belong to the library and live as long as the
 * process. Everything that a function is given belongs to the caller and lives until it returns:
 * keep no pointer to it, except to memory of tensors for work on `ts_call.stream`. A library frees
 * nothing that it did not allocate, and the caller frees nothing of the library's.
 *
 * Threads. All functions may be called from several threads at once, also for the same site. None
 * may throw, exit, or call into Python.
 */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
#include <cstddef> /* tells which C++ library this is: TS_CXX */
extern "C" {
#endif

#define TS_ABI_MAJOR 1
#define TS_ABI_MINOR 0
#define TS_ABI (((uint32_t)TS_ABI_MAJOR << 16) | (uint32_t)TS_ABI_MINOR)

#if defined(__GNUC__)
#define TS_EXPORT __attribute__((visibility("default")))
#define TS_HELPER static __attribute__((unused))
#define TS_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define TS_EXPORT
#define TS_HELPER static
#define TS_PRINTF(text, first)
#endif

/* ---- Tensors: DLPack's DLTensor, field by field ------------------------------------------------
 *
 * If dlpack/dlpack.h was included before this header, ts_tensor is its DLTensor. Strides count
 * elements and are never null; the stride of a dimension of size 1 means nothing. Memory of a
 * tensor without elements may be null. */

#ifdef DLPACK_DLPACK_H_
typedef DLDevice ts_device;
typedef DLDataType ts_dtype;
typedef DLTensor ts_tensor;
#else
typedef struct ts_device {
  int32_t device_type; /* as in DLPack: 1 CPU, 2 CUDA, 10 ROCm, ... */
  int32_t device_id;
} ts_device;

typedef struct ts_dtype {
  uint8_t code; /* one of the TS_ codes below */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} ts_dtype;

typedef struct ts_tensor {
  void* data;
  ts_device device;
  int32_t ndim;
  ts_dtype dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset; /* of the first element behind data */
} ts_tensor;
#endif

enum { TS_SIGNED = 0, TS_UNSIGNED = 1, TS_FLOAT = 2, TS_BFLOAT = 4, TS_BOOL = 6, TS_E4M3 = 10 };

#define TS_CHECK(name, condition) typedef char ts_check_##name[(condition) ? 1 : -1]
TS_CHECK(pointer, sizeof(void*) == 8);
TS_CHECK(tensor, sizeof(ts_tensor) == 48);
TS_CHECK(tensor_device, offsetof(ts_tensor, device) == 8 && sizeof(ts_device) == 8);
TS_CHECK(tensor_ndim, offsetof(ts_tensor, ndim) == 16 && offsetof(ts_tensor, dtype) == 20);
TS_CHECK(tensor_shape, offsetof(ts_tensor, shape) == 24 && offsetof(ts_tensor, strides) == 32);
TS_CHECK(tensor_offset, offsetof(ts_tensor, byte_offset) == 40);

/* ---- Values that are no tensors ---------------------------------------------------------------*/

enum { TS_NONE = 0, TS_INT = 1, TS_REAL = 2, TS_TEXT = 3 };

typedef struct ts_value {
  int32_t kind; /* TS_NONE, or which member of `as` holds it; a truth is a TS_INT of 0 or 1 */
  int32_t reserved;
  union {
    int64_t i;
    double f;
    const char* s;
  } as;
} ts_value;

/* Room for a text: the caller's `size` bytes, "" on entry, to be zero-terminated. */
typedef struct ts_text {
  char* data;
  size_t size;
} ts_text;

typedef struct ts_trait {
  const char* name;
  ts_value value;
} ts_trait;

/* ---- Choosing: what a kernel is asked before it runs ------------------------------------------*/

/* One place of one model where an op is called. */
typedef struct ts_site {
  uint32_t size;
  uint32_t abi;
  const char* op;          /* "name@major" */
  const char* dtype;       /* of the activations, such as "bfloat16" */
  const char* device_type; /* torch device type, such as "cuda" */
  const char* arch;        /* of the device, such as "sm_90" */
  const char* const* features;
  const ts_trait* traits; /* those that the op's page lists, in its order */
  int32_t num_features;
  int32_t num_traits;
  int64_t rows_min; /* fewest and most rows of the first tensor; rows_max -1: no bound */
  int64_t rows_max;
  int32_t units; /* cores or multiprocessors that a call may use */
  int32_t reserved;
} ts_site;

/* The answer. `accept` sets accepted and score, and writes why: it is shown to people. */
typedef struct ts_verdict {
  uint32_t size;
  uint32_t abi;
  int32_t accepted; /* 0 on entry */
  int32_t score;    /* the highest of all accepting kernels is chosen */
  ts_text why;
} ts_verdict;

/* ---- Running ----------------------------------------------------------------------------------*/

enum {
  TS_OK = 0,
  TS_INVALID = 1,   /* an argument cannot be served: a ValueError */
  TS_NO_MEMORY = 2, /* a MemoryError */
  TS_FAILED = 3,    /* anything else: a RuntimeError, as is every other number */
  TS_RAISED = -1,   /* of ts_invoke alone: a Python exception is set */
  TS_MISFIT = -2    /* of ts_invoke alone: an argument is no tensor */
};

typedef struct ts_call {
  uint32_t size;
  uint32_t abi;
  const ts_site* site; /* the one that was accepted */
  /* The op's tensors in the order of its arguments, those written in place among them, then its
   * results, which the caller allocated: contiguous, uninitialised. Null: an optional one that was
   * not given. A weight is what `pack` made of it. */
  const ts_tensor* const* tensors;
  const ts_value* scalars; /* the op's other arguments, in their order */
  int32_t num_tensors;
  int32_t num_scalars;
  void* stream;    /* queue the work here, and wait for nothing; null: do it before returning */
  int32_t threads; /* of the host, that the call may use, the calling one included */
  int32_t reserved;
  ts_text error; /* why the status is not TS_OK */
} ts_call;

/* A weight to be laid out once, after loading. With packed null, the kernel fills ndim, shape and
 * dtype of what it wants; then it is called again with that tensor, contiguous and zeroed. */
typedef struct ts_pack {
  uint32_t size;
  uint32_t abi;
  const ts_site* site;
  const ts_tensor* weight; /* as loaded: any strides */
  const ts_tensor* packed;
  int64_t shape[8];
  int32_t ndim;
  ts_dtype dtype;
  void* stream;
  int32_t threads;
  int32_t reserved;
  ts_text error;
} ts_pack;

/* ---- From Python: nothing that a kernel's author calls ------------------------------------------
 *
 * An engine calls a kernel with a tuple of Python objects. ts_invoke, which is compiled into every
 * library and named in its table, makes a ts_call of them in one step: done from Python it would
 * take longer than most kernels of a decode step. It needs no Python header: what it uses of the
 * interpreter and of the tensor library comes as functions. Python's lock is held when it is
 * called. */

typedef struct ts_host {
  uint32_t size;
  uint32_t abi;
  void* tensor_type;                       /* the type that tensors are instances of */
  void* none;                              /* None */
  void* (*tuple_item)(void*, intptr_t);    /* PyTuple_GetItem */
  int (*is_instance)(void*, void*);        /* PyObject_IsInstance */
  double (*as_double)(void*);              /* PyFloat_AsDouble */
  long long (*as_integer)(void*);          /* PyLong_AsLongLong */
  void* (*error)(void);                    /* PyErr_Occurred */
  void* (*release_lock)(void);             /* PyEval_SaveThread */
  void (*take_lock)(void*);                /* PyEval_RestoreThread */
  int (*describe)(void*, ts_tensor*);      /* DLPack: the DLTensor of an object; not 0: raised */
  int (*stream)(int32_t, int32_t, void**); /* DLPack: the current stream; null: not wanted */
} ts_host;

/* The memory of one call and how its arguments are to be read. The caller's; one call at a time. */
typedef struct ts_invocation {
  uint32_t size;
  uint32_t abi;
  const ts_host* host;
  int (*run)(const ts_call* call);
  int (*is_long)(const ts_call* call);
  ts_call* call;      /* `tensors` is `pointers`, `scalars` is `numbers` */
  ts_tensor* storage; /* what pointers point to */
  const ts_tensor** pointers;
  ts_value* numbers;    /* the kind of each is set; constant ones follow */
  int32_t num_required; /* tensors that are always given */
  int32_t num_optional; /* tensors behind them that may be None */
  int32_t num_numbers;  /* of each call, behind the tensors */
  int32_t reserved;
} ts_invocation;

/* ---- What a library offers --------------------------------------------------------------------*/

typedef struct ts_kernel {
  uint32_t size;
  uint32_t abi;
  const char* op;   /* "name@major" of a public op */
  const char* name; /* unique among the kernels of the op */
  /* Whether it can serve a site, and how well. Looks at the site alone; touches no device. */
  void (*accept)(const ts_site* site, ts_verdict* verdict);
  /* Computes. Returns TS_OK, or another status with `error` written. */
  int (*run)(const ts_call* call);
  /* Optional. Whether this call takes more than about 100 us of the calling thread: then it runs
   * without Python's lock, which is not worth its price for less. Queueing work on a stream is
   * short. Null: every call is long. */
  int (*is_long)(const ts_call* call);
  /* Optional. For ops with a weight of rank 2. Null: the kernel reads weights as they are. */
  int (*pack)(ts_pack* pack);
} ts_kernel;

typedef struct ts_library {
  uint32_t size;
  uint32_t abi;
  /* What it was built with; null for what it does not use. Shown, and told in reports. */
  const char* compiler; /* TS_COMPILER */
  const char* cxx;      /* TS_CXX: C++ library and its string ABI */
  const char* cuda;     /* such as "13.0" */
  const char* torch;    /* such as "2.11" */
  int (*invoke)(ts_invocation* invocation, void* arguments, void* result); /* ts_invoke */
  const ts_kernel* const* kernels;
  int32_t num_kernels;
  int32_t reserved;
} ts_library;

/* The one symbol of a library. */
TS_EXPORT const ts_library* ts_library_table(void);

/* What a struct starts with, and a whole table. */
#define TS_HEADER(type) (uint32_t)sizeof(type), TS_ABI
#define TS_LIBRARY(cuda, torch, kernels, num_kernels) \
  {TS_HEADER(ts_library), TS_COMPILER, TS_CXX, cuda, torch, ts_invoke, kernels, num_kernels, 0}

#ifdef __VERSION__
#define TS_COMPILER __VERSION__
#else
#define TS_COMPILER NULL
#endif

#if !defined(__cplusplus)
#define TS_CXX NULL
#elif defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI
#define TS_CXX "libstdc++-cxx11"
#elif defined(__GLIBCXX__)
#define TS_CXX "libstdc++-old"
#elif defined(_LIBCPP_VERSION)
#define TS_CXX "libc++"
#else
#define TS_CXX NULL
#endif

/* ---- Conveniences, compiled into the library --------------------------------------------------*/

TS_HELPER void* ts_data(const ts_tensor* tensor) {
  return tensor->data ? (char*)tensor->data + tensor->byte_offset : NULL;
}

TS_HELPER int ts_is_dtype(const ts_tensor* tensor, int code, int bits) {
  return tensor->dtype.code == code && tensor->dtype.bits == bits && tensor->dtype.lanes == 1;
}

/* The trait of that name, or null. */
TS_HELPER const ts_value* ts_find_trait(const ts_site* site, const char* name) {
  int32_t i;
  for (i = 0; i < site->num_traits; ++i) {
    if (!strcmp(site->traits[i].name, name)) return &site->traits[i].value;
  }
  return NULL;
}

/* A trait that is a number; `otherwise` if the site has none of that name or it is none. */
TS_HELPER int64_t ts_int_trait(const ts_site* site, const char* name, int64_t otherwise) {
  const ts_value* value = ts_find_trait(site, name);
  return value && value->kind == TS_INT ? value->as.i : otherwise;
}

TS_HELPER void ts_accept(ts_verdict* verdict, int score, const char* why, ...) TS_PRINTF(3, 4);
TS_HELPER void ts_accept(ts_verdict* verdict, int score, const char* why, ...) {
  va_list arguments;
  va_start(arguments, why);
  vsnprintf(verdict->why.data, verdict->why.size, why, arguments);
  va_end(arguments);
  verdict->accepted = 1;
  verdict->score = score;
}

TS_HELPER void ts_decline(ts_verdict* verdict, const char* why, ...) TS_PRINTF(2, 3);
TS_HELPER void ts_decline(ts_verdict* verdict, const char* why, ...) {
  va_list arguments;
  va_start(arguments, why);
  vsnprintf(verdict->why.data, verdict->why.size, why, arguments);
  va_end(arguments);
  verdict->accepted = 0;
}

TS_HELPER int ts_read_tensor(const ts_invocation* in, int32_t index, void* object) {
  const ts_host* host = in->host;
  in->pointers[index] = &in->storage[index];
  if (object == host->none && index >= in->num_required) {
    in->pointers[index] = NULL;
    return TS_OK;
  }
  if (!object || host->is_instance(object, host->tensor_type) != 1) return TS_MISFIT;
  return host->describe(object, &in->storage[index]) ? TS_RAISED : TS_OK;
}

TS_HELPER int ts_read_number(const ts_invocation* in, int32_t index, void* object) {
  ts_value* value = &in->numbers[index];
  if (!object) return TS_RAISED;
  if (value->kind == TS_REAL) {
    value->as.f = in->host->as_double(object);
  } else {
    value->as.i = in->host->as_integer(object);
  }
  return in->host->error() ? TS_RAISED : TS_OK;
}

/* Computes: `arguments` is a tuple of all arguments of the op, `result` the tensor to fill or None.
 * Returns the status of run, or why it was not called. */
TS_HELPER int ts_invoke(ts_invocation* in, void* arguments, void* result) {
  const ts_host* host = in->host;
  const int32_t tensors = in->num_required + in->num_optional;
  int status = TS_OK;
  int32_t i;
  for (i = 0; i < tensors && status == TS_OK; ++i) {
    status = ts_read_tensor(in, i, host->tuple_item(arguments, i));
  }
  for (i = 0; i < in->num_numbers && status == TS_OK; ++i) {
    status = ts_read_number(in, i, host->tuple_item(arguments, tensors + i));
  }
  if (status == TS_OK && result != host->none) status = ts_read_tensor(in, tensors, result);
  if (status == TS_OK && host->stream) {
    const ts_device device = in->storage[0].device;
    status = host->stream((int32_t)device.device_type, device.device_id, &in->call->stream);
  }
  if (status != TS_OK) return status;
  if (in->is_long && !in->is_long(in->call)) return in->run(in->call);
  {
    void* thread = host->release_lock();
    status = in->run(in->call);
    host->take_lock(thread);
  }
  return status;
}

/* Writes a text and returns `status`: return ts_fail(&call->error, TS_INVALID, "..."). */
TS_HELPER int ts_fail(const ts_text* error, int status, const char* text, ...) TS_PRINTF(3, 4);
TS_HELPER int ts_fail(const ts_text* error, int status, const char* text, ...) {
  va_list arguments;
  va_start(arguments, text);
  vsnprintf(error->data, error->size, text, arguments);
  va_end(arguments);
  return status;
}

#ifdef __cplusplus
}
#endif
#endif /* TOKENSPEED_KERNEL_H_ */
