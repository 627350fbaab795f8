// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// The tensors of a call, checked before a kernel reads them.

#include <tokenspeed/kernel.h>

#include <initializer_list>

namespace tokenspeed::cpu {

constexpr int64_t kAny = -1;  // a size that the first tensor to have it decides

// A tensor that fits. Its last stride is 1 and is not among those that count.
template <class T>
struct View {
  T* data = nullptr;
  const int64_t* shape = nullptr;
  const int64_t* strides = nullptr;
};

template <class T>
struct TypeOf;
template <>
struct TypeOf<float> {
  static constexpr int code = TS_FLOAT, bits = 32;
  static constexpr const char* name = "float32";
};
template <>
struct TypeOf<int32_t> {
  static constexpr int code = TS_SIGNED, bits = 32;
  static constexpr const char* name = "int32";
};
template <>
struct TypeOf<uint8_t> {
  static constexpr int code = TS_UNSIGNED, bits = 8;
  static constexpr const char* name = "uint8";
};
template <>
struct TypeOf<int64_t> {
  static constexpr int code = TS_SIGNED, bits = 64;
  static constexpr const char* name = "int64";
};

// Takes the tensors of a call one by one. The first that does not fit makes the call fail, with a
// text that names it; the others are then empty.
class Arguments {
 public:
  explicit Arguments(const ts_call* call) : call_(call) {}

  // Tensor `index`. Each size is bound at its first use (kAny) and must agree from then on.
  template <class T>
  View<T> tensor(int index, const char* name, std::initializer_list<int64_t*> sizes) {
    const ts_tensor* t = take(index, name, TypeOf<T>::code, TypeOf<T>::bits, TypeOf<T>::name);
    if (!t || !agree(*t, name, sizes)) return {};
    return {static_cast<T*>(ts_data(t)), t->shape, t->strides};
  }

  // As above; empty, and no failure, when it was not given.
  template <class T>
  View<T> optional(int index, const char* name, std::initializer_list<int64_t*> sizes) {
    return index < call_->num_tensors && call_->tensors[index] ? tensor<T>(index, name, sizes)
                                                               : View<T>{};
  }

  // Any number of dimensions, at least `least`, all strides free but the last.
  const ts_tensor* any_shape(int index, const char* name, int least);

  double real(int index) const { return call_->scalars[index].as.f; }
  int64_t integer(int index) const { return call_->scalars[index].as.i; }

  // TS_OK while everything fitted.
  int status() const { return status_; }

 private:
  const ts_tensor* take(int index, const char* name, int code, int bits, const char* type);
  bool agree(const ts_tensor& tensor, const char* name, std::initializer_list<int64_t*> sizes);
  bool has_unit_stride(const ts_tensor& tensor, const char* name);
  void misshapen(const ts_tensor& tensor, const char* name, std::initializer_list<int64_t*> sizes);

  const ts_call* call_;
  int status_ = TS_OK;
};

// Elements of a tensor; 0 if it was not given.
int64_t elements_of(const ts_tensor* tensor);

}  // namespace tokenspeed::cpu
