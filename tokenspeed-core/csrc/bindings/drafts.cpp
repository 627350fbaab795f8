// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "bindings/arrays.h"
#include "drafts/suffix_drafter.h"

// The binding of the drafter; tokenspeed/_drafts.pyi is its interface. All calls are short, so none
// releases the GIL.
namespace tokenspeed::bindings {
namespace {

using drafts::SuffixDrafter;
using Counts = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>>;

[[noreturn]] void wrong(const char* name, const std::string& expected) {
  throw nb::value_error((std::string(name) + ": expected " + expected).c_str());
}

std::size_t limit(std::int64_t value, const char* name, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    wrong(name, "a number from " + std::to_string(least) + " to " + std::to_string(most) +
                    ", not " + std::to_string(value));
  }
  return static_cast<std::size_t>(value);
}

void init(SuffixDrafter* self, std::int64_t max_model_len, std::int64_t pool_bytes) {
  new (self) SuffixDrafter(limit(max_model_len, "max_model_len", 1, INT32_MAX - 1),
                           limit(pool_bytes, "pool_bytes", 0, std::int64_t{1} << 40));
}

void begin(SuffixDrafter& drafter, RequestId request, nb::handle prompt, Namespace ns) {
  drafter.begin(request, Array<const TokenId>(prompt, "prompt", 1).span(), ns);
}

void advance(SuffixDrafter& drafter, nb::handle request, nb::handle token_start,
             nb::handle tokens) {
  const Array<const RequestId> requests(request, "request", 1);
  const Array<const std::int32_t> starts(token_start, "token_start", 1);
  const Array<const TokenId> ids(tokens, "tokens", 1);
  const auto start = starts.span();
  if (start.size() != requests.raw.size + 1) {
    wrong("token_start", "one entry more than there are requests");
  }
  if (start.front() < 0 || !std::is_sorted(start.begin(), start.end()) ||
      static_cast<std::size_t>(start.back()) > ids.raw.size) {
    wrong("token_start", "entries that do not fall, from 0 to the number of tokens");
  }
  for (std::size_t i = 0; i < requests.raw.size; ++i) {
    const auto first = static_cast<std::size_t>(start[i]);
    const auto count = static_cast<std::size_t>(start[i + 1]) - first;
    drafter.advance(requests.span()[i], ids.span().subspan(first, count));
  }
}

Counts draft(SuffixDrafter& drafter, nb::handle request, nb::handle most, nb::handle tokens) {
  const Array<const RequestId> requests(request, "request", 1);
  const Array<const std::int32_t> limits(most, "most", 1);
  const Array<TokenId> guesses(tokens, "tokens", 2);
  const std::size_t rows = requests.raw.size;
  const std::size_t width = guesses.raw.shape[1];
  if (limits.raw.size != rows) {
    wrong("most", "one entry per request");
  }
  if (guesses.raw.shape[0] != rows) {
    wrong("tokens", "one row per request");
  }
  auto counts = std::make_unique<std::int32_t[]>(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    const auto wanted = static_cast<std::size_t>(std::max(limits.span()[i], 0));
    const auto row = guesses.span().subspan(i * width, std::min(width, wanted));
    counts[i] = static_cast<std::int32_t>(drafter.draft(requests.span()[i], row));
  }
  std::int32_t* const data = counts.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::int32_t*>(p); });
  return {data, {rows}, owner};
}

}  // namespace
}  // namespace tokenspeed::bindings

NB_MODULE(_drafts, m) {
  namespace nb = nanobind;
  using namespace tokenspeed::bindings;
#ifndef TOKENSPEED_LEAK_WARNINGS
  nb::set_leak_warnings(false);  // a drafter that lives until exit is no mistake
#endif
  m.doc() = "Guesses what requests say next, without a model.";
  nb::class_<SuffixDrafter>(m, "SuffixDrafter")
      .def("__init__", &init, nb::kw_only(), nb::arg("max_model_len"), nb::arg("pool_bytes"))
      .def("begin", &begin, nb::arg("request"), nb::arg("prompt"), nb::kw_only(),
           nb::arg("namespace"))
      .def("advance", &advance, nb::arg("request"), nb::arg("token_start"), nb::arg("tokens"))
      .def("draft", &draft, nb::arg("request"), nb::arg("most"), nb::arg("tokens"))
      .def("end", &SuffixDrafter::end, nb::arg("request"))
      .def("requests", &SuffixDrafter::requests);
}
