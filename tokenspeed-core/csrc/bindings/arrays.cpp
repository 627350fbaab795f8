// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "bindings/arrays.h"

#include <string>

namespace tokenspeed::bindings {
namespace {

[[noreturn]] void wrong_type(const char* name, const std::string& what) {
  throw nb::type_error((std::string(name) + ": " + what).c_str());
}

bool is_c_contiguous(const nb::ndarray<nb::ro, nb::device::cpu>& array) {
  std::int64_t expected = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected) {
      return false;
    }
    expected *= static_cast<std::int64_t>(array.shape(i));
  }
  return true;
}

}  // namespace

RawArray borrow_array(nb::handle value, const char* name, nb::dlpack::dtype dtype,
                      const char* dtype_name, std::size_t ndim, bool writable) {
  RawArray raw;
  if (!nb::try_cast(value, raw.owner, false)) {
    wrong_type(name, "expected an array in CPU memory");
  }
  if (raw.owner.dtype() != dtype) {
    wrong_type(name, std::string("expected dtype ") + dtype_name);
  }
  if (raw.owner.ndim() != ndim) {
    wrong_type(name, "expected " + std::to_string(ndim) + " dimensions, not " +
                         std::to_string(raw.owner.ndim()));
  }
  if (raw.owner.size() > 0 && !is_c_contiguous(raw.owner)) {
    wrong_type(name, "expected a C-contiguous array");
  }
  nb::ndarray<nb::device::cpu> probe;
  if (writable && !nb::try_cast(value, probe, false)) {
    wrong_type(name, "expected a writable array");
  }
  raw.data = const_cast<void*>(raw.owner.data());
  for (std::size_t i = 0; i < ndim; ++i) {
    raw.shape[i] = raw.owner.shape(i);
  }
  raw.size = raw.owner.size();
  return raw;
}

}  // namespace tokenspeed::bindings
