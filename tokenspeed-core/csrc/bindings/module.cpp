// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/plan_buffers.h"
#include "bindings/values.h"
#include "schedule/capacity.h"
#include "schedule/scheduler.h"

// The binding: flat data crosses, owners never do. tokenspeed/_scheduler.pyi is its interface.
// All calls are short, so none releases the GIL.
namespace tokenspeed::bindings {
namespace {

using Strings = std::tuple<std::string, std::string, std::string>;

SubmitResult submit(Scheduler& scheduler, RequestId request, nb::handle tokens,
                    int max_new_tokens, nb::handle stop_ids, Namespace ns, int priority,
                    int draft_tokens, std::int64_t deadline_ms, std::int64_t now_ms) {
  const Array<const TokenId> prompt(tokens, "tokens", 1);
  const Array<const TokenId> stops(stop_ids, "stop_ids", 1);
  return scheduler.submit({request, prompt.span(), max_new_tokens, stops.span(), ns, priority,
                           draft_tokens, deadline_ms, now_ms});
}

void commit(Scheduler& scheduler, std::int64_t step, nb::handle num_tokens, nb::handle tokens,
            nb::handle failed, std::int64_t elapsed_us) {
  const Array<const std::int32_t> counts(num_tokens, "num_tokens", 1);
  const Array<const TokenId> ids(tokens, "tokens", 2);
  const Array<const std::uint8_t> failures(failed, "failed", 1);
  scheduler.commit(step, {counts.span(), ids.span(), failures.span(), elapsed_us});
}

using PageTable = nb::ndarray<nb::numpy, PageId, nb::ndim<1>>;

PageTable page_table(const Scheduler& scheduler, RequestId request, int group) {
  using Table = std::vector<PageId>;
  auto* table = new Table(scheduler.page_table(request, group));
  const nb::capsule owner(table, [](void* p) noexcept { delete static_cast<Table*>(p); });
  return {table->data(), {table->size()}, owner};
}

using TokenArray = nb::ndarray<nb::numpy, TokenId, nb::ndim<1>>;

std::tuple<TokenArray, int> tokens(const Scheduler& scheduler, RequestId request) {
  using Tokens = std::vector<TokenId>;
  const TokenHistory history = scheduler.tokens(request);
  auto* copy = new Tokens(history.tokens.begin(), history.tokens.end());
  const nb::capsule owner(copy, [](void* p) noexcept { delete static_cast<Tokens*>(p); });
  return {TokenArray(copy->data(), {copy->size()}, owner), history.prompt_len};
}

std::vector<Strings> take_rejected_events(Scheduler& scheduler) {
  std::vector<Strings> rows;
  for (const RejectedEvent& event : scheduler.take_rejected_events()) {
    rows.emplace_back(std::to_string(event.request), event.state, event.event);
  }
  return rows;
}

std::vector<Strings> transition_table() {
  using Table = fsm::Transitions;
  std::vector<Strings> rows;
  for (const fsm::TableRow& row : Table::rows) {
    std::string_view outcome = Table::state_names[row.next];
    if (row.kind != fsm::OutcomeKind::TO) {
      outcome = row.kind == fsm::OutcomeKind::IGNORE ? "ignore" : "reject";
    }
    rows.emplace_back(Table::state_names[row.state], Table::event_names[row.event], outcome);
  }
  return rows;
}

void bind_scheduler(nb::module_& m) {
  nb::class_<Scheduler>(m, "Scheduler")
      .def(nb::init<const Config&>(), nb::arg("config"))
      .def("submit", &submit, nb::arg("request"), nb::arg("tokens"), nb::kw_only(),
           nb::arg("max_new_tokens"), nb::arg("stop_ids"), nb::arg("namespace") = 0,
           nb::arg("priority") = 0, nb::arg("draft_tokens") = 0, nb::arg("deadline_ms") = 0,
           nb::arg("now_ms"))
      .def("abort", &Scheduler::abort, nb::arg("request"))
      .def("plan",
           [](Scheduler& scheduler, std::int64_t now_ms, PlanBuffers& buffers) {
             if (buffers.groups() != scheduler.layout().groups().size()) {
               throw nb::value_error("delta_slot: expected one row per cache group");
             }
             const Config& config = scheduler.config();
             const auto emits = static_cast<std::size_t>(config.max_seqs * config.max_row_tokens);
             if (buffers.has_executor() && buffers.emits() < emits) {
               throw nb::value_error("sampled: expected at least max_seqs * max_row_tokens entries");
             }
             const PlanSummary plan = scheduler.plan(now_ms, buffers.view());
             if (buffers.has_executor()) {
               buffers.derive(plan);
             }
             return plan;
           },
           nb::arg("now_ms"), nb::arg("buffers"))
      .def("commit", &commit, nb::arg("step"), nb::arg("num_tokens"), nb::arg("tokens"),
           nb::arg("failed"), nb::arg("elapsed_us") = 0)
      .def("commit_sampled",
           [](Scheduler& scheduler, std::int64_t step, const PlanBuffers& buffers,
              std::int64_t elapsed_us) { buffers.commit(scheduler, step, elapsed_us); },
           nb::arg("step"), nb::arg("buffers"), nb::arg("elapsed_us") = 0)
      .def("set_drafts",
           [](Scheduler& scheduler, RequestId request, nb::handle tokens) {
             return scheduler.set_drafts(request, Array<const TokenId>(tokens, "tokens", 1).span());
           },
           nb::arg("request"), nb::arg("tokens"))
      .def("ack", &Scheduler::ack, nb::arg("transfer"), nb::arg("ok"))
      .def("check_digest", &Scheduler::check_digest, nb::arg("step"), nb::arg("digest"))
      .def("page_table", &page_table, nb::arg("request"), nb::arg("group") = 0)
      .def("tokens", &tokens, nb::arg("request"))
      .def("take_updates", &Scheduler::take_updates)
      .def("take_kv_events", &Scheduler::take_kv_events)
      .def("take_rejected_events", &take_rejected_events)
      .def("has_work", &Scheduler::has_work)
      .def("ledger", &Scheduler::ledger)
      .def("gauges", &Scheduler::gauges)
      .def("counters", [](const Scheduler& scheduler) { return Counters(scheduler.counters()); })
      .def("reset_prefix_cache", &Scheduler::reset_prefix_cache);
}

}  // namespace
}  // namespace tokenspeed::bindings

NB_MODULE(_scheduler, m) {
#ifndef TOKENSPEED_LEAK_WARNINGS
  nanobind::set_leak_warnings(false);  // a scheduler that lives until exit is no mistake
#endif
  m.doc() = "The C++ control plane: flat data in, flat data out.";
  tokenspeed::bindings::bind_values(m);
  tokenspeed::bindings::bind_plan_buffers(m);
  tokenspeed::bindings::bind_scheduler(m);
  m.def("transition_table", &tokenspeed::bindings::transition_table);
  m.def("max_copies", [](const tokenspeed::Config& config) {
    return tokenspeed::max_copies(config, tokenspeed::Layout(config.groups));
  }, nanobind::arg("config"));
  m.def("max_transfer_pages", [](const tokenspeed::Config& config) {
    return tokenspeed::max_transfer_pages(config, tokenspeed::Layout(config.groups));
  }, nanobind::arg("config"));
}
