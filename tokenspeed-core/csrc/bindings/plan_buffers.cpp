// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "bindings/plan_buffers.h"

#include <algorithm>
#include <string>
#include <vector>

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

  bool has(const char* name) const { return arrays_.contains(name); }

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
  if (fields.has("sampled")) {
    std::array<std::size_t, 2> emits{};
    fields.take("delta_count", 1, {groups_, 1}, executor_.delta_count);
    fields.take("token_slot", 1, tokens, executor_.token_slot);
    executor_.sampled = fields.define<std::int64_t>("sampled", 1, emits);
    fields.take("emit_token", 1, emits, executor_.emit_token);
    fields.take("emit_slot", 1, emits, executor_.emit_slot);
    fields.take("emit_position", 1, emits, executor_.emit_position);
  }
  fields.expect_no_others();
}

namespace {

// Of what was sampled behind each input of a row: up to the first that is not the next input, which
// was a wrong draft. The last of them has no next. A token that is none ends them, too: the next step
// finds it again, first.
std::span<const std::int64_t> accept(std::span<const std::int64_t> sampled,
                                     std::span<const TokenId> inputs) noexcept {
  std::size_t count = 1;
  while (count < sampled.size() && sampled[count - 1] == inputs[count] && sampled[count] >= 0) {
    ++count;
  }
  return sampled.first(std::min(count, sampled.size()));
}

}  // namespace

void PlanBuffers::derive(const PlanSummary& plan) noexcept {
  step_ = plan.step;
  rows_ = static_cast<std::size_t>(plan.num_rows);
  std::copy_n(plan.num_deltas.begin(), groups_, executor_.delta_count.begin());
  std::size_t emit = 0;
  for (std::size_t row = 0; row < rows_; ++row) {
    const SlotId slot = view_.row_slot[row];
    const int begin = view_.row_query_start[row];
    const int end = view_.row_query_start[row + 1];
    std::fill_n(executor_.token_slot.begin() + begin, end - begin, slot);
    const std::uint8_t flags = view_.row_flags[row];
    const int first = (flags & DECODE) != 0 ? begin : (flags & EMITS) != 0 ? end - 1 : end;
    for (int token = first; token < end; ++token, ++emit) {
      executor_.emit_token[emit] = token;
      executor_.emit_slot[emit] = slot;
      executor_.emit_position[emit] = view_.row_kv_len[row] - (end - 1 - token);
    }
  }
}

void PlanBuffers::commit(Scheduler& scheduler, std::int64_t step, std::int64_t elapsed_us) const {
  if (!has_executor() || step != step_) {
    throw nb::value_error(
        ("commit_sampled: the buffers hold no results of step " + std::to_string(step)).c_str());
  }
  const auto width = static_cast<std::size_t>(scheduler.config().max_row_tokens);
  std::vector<std::int32_t> counts(rows_);
  std::vector<TokenId> tokens(rows_ * width);
  std::vector<std::uint8_t> failed(rows_);
  std::size_t emit = 0;
  for (std::size_t row = 0; row < rows_; ++row) {
    const std::uint8_t flags = view_.row_flags[row];
    const auto begin = static_cast<std::size_t>(view_.row_query_start[row]);
    const auto end = static_cast<std::size_t>(view_.row_query_start[row + 1]);
    const std::size_t asked = (flags & DECODE) != 0 ? end - begin : (flags & EMITS) != 0 ? 1 : 0;
    const auto accepted = accept(executor_.sampled.subspan(emit, asked),
                                 view_.token_ids.subspan(end - asked, asked));
    emit += asked;
    counts[row] = static_cast<std::int32_t>(accepted.size());
    failed[row] = !accepted.empty() && accepted.back() < 0;
    std::transform(accepted.begin(), accepted.end(), tokens.begin() + row * width,
                   [](std::int64_t token) { return static_cast<TokenId>(token); });
  }
  scheduler.commit(step, {counts, tokens, failed, elapsed_us});
}

void bind_plan_buffers(nb::module_& m) {
  nb::class_<PlanBuffers>(m, "PlanBuffers").def(nb::init<const nb::kwargs&>());
}

}  // namespace tokenspeed::bindings
