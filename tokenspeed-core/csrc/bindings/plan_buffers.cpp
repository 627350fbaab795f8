// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "bindings/plan_buffers.h"

#include <string>

namespace tokenspeed::bindings {
namespace {

std::string shape_text(const std::array<std::size_t, 2>& shape, std::size_t ndim) {
  std::string text = "(" + std::to_string(shape[0]);
  return text + (ndim == 2 ? ", " + std::to_string(shape[1]) : ",") + ")";
}

// Takes the arrays out of the keyword arguments one by one; what is left at the end is unknown.
class Fields {
 public:
  explicit Fields(const nb::dict& arrays) : arrays_(arrays) {}

  // The first array of a dimension says how long it is.
  template <class T>
  std::span<T> define(const char* name, std::size_t ndim, std::array<std::size_t, 2>& shape) {
    Array<T> array = get<T>(name, ndim);
    shape = array.raw.shape;
    return array.span();
  }

  template <class T>
  void take(const char* name, std::size_t ndim, std::array<std::size_t, 2> shape,
            std::span<T>& out) {
    Array<T> array = get<T>(name, ndim);
    if (array.raw.shape != shape) {
      throw nb::value_error((std::string(name) + ": expected shape " + shape_text(shape, ndim) +
                             ", not " + shape_text(array.raw.shape, ndim))
                                .c_str());
    }
    out = array.span();
  }

  void expect_no_others() const {
    if (arrays_.size() != taken_) {
      throw nb::type_error("PlanBuffers: an argument that is not one of its arrays");
    }
  }

 private:
  template <class T>
  Array<T> get(const char* name, std::size_t ndim) {
    if (!arrays_.contains(name)) {
      throw nb::type_error((std::string("PlanBuffers: array missing: ") + name).c_str());
    }
    taken_ += 1;
    return Array<T>(arrays_[name], name, ndim);
  }

  const nb::dict& arrays_;
  std::size_t taken_ = 0;
};

}  // namespace

PlanBuffers::PlanBuffers(const nb::kwargs& arrays) : arrays_(nb::borrow<nb::dict>(arrays)) {
  Fields fields(arrays_);
  std::array<std::size_t, 2> rows{}, tokens{}, deltas{}, copies{}, stores{}, loads{};
  view_.row_request = fields.define<RequestId>("row_request", 1, rows);
  fields.take("row_slot", 1, rows, view_.row_slot);
  fields.take("row_epoch", 1, rows, view_.row_epoch);
  fields.take("row_flags", 1, rows, view_.row_flags);
  fields.take("row_query_start", 1, {rows[0] + 1, 1}, view_.row_query_start);
  fields.take("row_kv_len", 1, rows, view_.row_kv_len);
  view_.token_ids = fields.define<TokenId>("token_ids", 1, tokens);
  fields.take("positions", 1, tokens, view_.positions);
  view_.delta_slot = fields.define<SlotId>("delta_slot", 2, deltas);
  fields.take("delta_epoch", 2, deltas, view_.delta_epoch);
  fields.take("delta_index", 2, deltas, view_.delta_index);
  fields.take("delta_page", 2, deltas, view_.delta_page);
  view_.copy_source = fields.define<PageId>("copy_source", 1, copies);
  fields.take("copy_target", 1, copies, view_.copy_target);
  view_.store_transfer = fields.define<TransferId>("store_transfer", 1, stores);
  fields.take("store_source", 1, stores, view_.store_source);
  fields.take("store_target", 1, stores, view_.store_target);
  view_.load_transfer = fields.define<TransferId>("load_transfer", 1, loads);
  fields.take("load_source", 1, loads, view_.load_source);
  fields.take("load_target", 1, loads, view_.load_target);
  groups_ = deltas[0];
  fields.expect_no_others();
}

void bind_plan_buffers(nb::module_& m) {
  nb::class_<PlanBuffers>(m, "PlanBuffers").def(nb::init<const nb::kwargs&>());
}

}  // namespace tokenspeed::bindings
