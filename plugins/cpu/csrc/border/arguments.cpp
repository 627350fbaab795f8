// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "arguments.h"

#include <string>

namespace tokenspeed::cpu {
namespace {

std::string shape_text(const ts_tensor& tensor) {
  std::string text;
  for (int i = 0; i < tensor.ndim; ++i) {
    text += (i ? ", " : "") + std::to_string(tensor.shape[i]);
  }
  return "[" + text + "]";
}

}  // namespace

const ts_tensor* Arguments::take(int index, const char* name, int code, int bits,
                                 const char* type) {
  if (status_ != TS_OK) return nullptr;
  const ts_tensor* tensor = index < call_->num_tensors ? call_->tensors[index] : nullptr;
  if (!tensor) {
    status_ = ts_fail(&call_->error, TS_INVALID, "%s is missing", name);
    return nullptr;
  }
  constexpr int kCpu = 1;
  if (tensor->device.device_type != kCpu) {
    status_ = ts_fail(&call_->error, TS_INVALID, "%s must lie in the host's memory", name);
  } else if (!ts_is_dtype(tensor, code, bits)) {
    status_ = ts_fail(&call_->error, TS_INVALID,
                      "%s must have dtype %s; got DLPack dtype code %d of %d bits", name, type,
                      static_cast<int>(tensor->dtype.code), static_cast<int>(tensor->dtype.bits));
  }
  return status_ == TS_OK ? tensor : nullptr;
}

bool Arguments::has_unit_stride(const ts_tensor& tensor, const char* name) {
  const int last = tensor.ndim - 1;
  if (last < 0 || tensor.shape[last] <= 1 || tensor.strides[last] == 1) return true;
  status_ = ts_fail(&call_->error, TS_INVALID, "%s must have a unit last stride; got %lld", name,
                    static_cast<long long>(tensor.strides[last]));
  return false;
}

bool Arguments::agree(const ts_tensor& tensor, const char* name,
                      std::initializer_list<int64_t*> sizes) {
  bool fits = tensor.ndim == static_cast<int32_t>(sizes.size());
  if (fits) {
    const int64_t* size = tensor.shape;
    for (int64_t* wanted : sizes) {
      if (*wanted == kAny) *wanted = *size;
      fits = fits && *wanted == *size++;
    }
  }
  if (!fits) misshapen(tensor, name, sizes);
  return fits && has_unit_stride(tensor, name);
}

void Arguments::misshapen(const ts_tensor& tensor, const char* name,
                          std::initializer_list<int64_t*> sizes) {
  std::string wanted;
  for (const int64_t* size : sizes) {
    wanted += (wanted.empty() ? "" : ", ") + (*size == kAny ? "any" : std::to_string(*size));
  }
  status_ = ts_fail(&call_->error, TS_INVALID, "%s must have shape [%s]; got %s", name,
                    wanted.c_str(), shape_text(tensor).c_str());
}

const ts_tensor* Arguments::any_shape(int index, const char* name, int least) {
  const ts_tensor* tensor = take(index, name, TypeOf<float>::code, 32, TypeOf<float>::name);
  if (!tensor) return nullptr;
  if (tensor->ndim < least) {
    status_ = ts_fail(&call_->error, TS_INVALID, "%s must have at least %d dimensions; got %s",
                      name, least, shape_text(*tensor).c_str());
    return nullptr;
  }
  return has_unit_stride(*tensor, name) ? tensor : nullptr;
}

int64_t elements_of(const ts_tensor* tensor) {
  if (!tensor) return 0;
  int64_t count = 1;
  for (int i = 0; i < tensor->ndim; ++i) count *= tensor->shape[i];
  return count;
}

}  // namespace tokenspeed::cpu
