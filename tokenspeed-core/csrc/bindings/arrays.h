// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>

// Arrays that cross the border. nanobind would convert or copy an array that does not match, and
// then a write would go into the copy; here a mismatch is an error that names the array.
namespace tokenspeed::bindings {

namespace nb = nanobind;

struct RawArray {
  nb::ndarray<nb::ro, nb::device::cpu> owner;  // keeps the memory alive
  void* data = nullptr;
  std::array<std::size_t, 2> shape{1, 1};
  std::size_t size = 0;
};

// Throws TypeError or ValueError. A writable array is also checked to be one.
RawArray borrow_array(nb::handle value, const char* name, nb::dlpack::dtype dtype,
                      const char* dtype_name, std::size_t ndim, bool writable);

template <class T>
constexpr const char* dtype_name() {
  if constexpr (std::is_same_v<T, std::int32_t>) return "int32";
  if constexpr (std::is_same_v<T, std::int64_t>) return "int64";
  if constexpr (std::is_same_v<T, std::uint32_t>) return "uint32";
  if constexpr (std::is_same_v<T, std::uint64_t>) return "uint64";
  if constexpr (std::is_same_v<T, std::uint8_t>) return "uint8";
}

// `const T` borrows for reading, `T` for writing.
template <class T>
struct Array {
  RawArray raw;

  Array(nb::handle value, const char* name, std::size_t ndim)
      : raw(borrow_array(value, name, nb::dtype<std::remove_const_t<T>>(),
                         dtype_name<std::remove_const_t<T>>(), ndim, !std::is_const_v<T>)) {}
  std::span<T> span() const noexcept { return {static_cast<T*>(raw.data), raw.size}; }
};

}  // namespace tokenspeed::bindings
