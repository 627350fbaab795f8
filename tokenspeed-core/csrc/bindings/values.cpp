// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "bindings/values.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "schedule/scheduler.h"

namespace tokenspeed::bindings {
namespace {

namespace nb = nanobind;

void bind_enums(nb::module_& m) {
  nb::enum_<Finish>(m, "Finish", nb::is_arithmetic())
      .value("NONE", Finish::NONE)
      .value("STOP", Finish::STOP)
      .value("LENGTH", Finish::LENGTH)
      .value("ABORTED", Finish::ABORTED)
      .value("EXPIRED", Finish::EXPIRED)
      .value("FAILED", Finish::FAILED);
  nb::enum_<RowFlag>(m, "RowFlag", nb::is_arithmetic(), nb::is_flag())
      .value("EMITS", RowFlag::EMITS)
      .value("DECODE", RowFlag::DECODE)
      .value("NEW_TENANT", RowFlag::NEW_TENANT);
  nb::enum_<Blocked>(m, "Blocked", nb::is_arithmetic())
      .value("NO", Blocked::NO)
      .value("IDLE", Blocked::IDLE)
      .value("COMMIT", Blocked::COMMIT)
      .value("TRANSFER", Blocked::TRANSFER)
      .value("PAGES", Blocked::PAGES);
  nb::enum_<Tier>(m, "Tier", nb::is_arithmetic())
      .value("DEVICE", Tier::DEVICE)
      .value("HOST", Tier::HOST);
  nb::enum_<KvEvent>(m, "KvEvent", nb::is_arithmetic())
      .value("STORED", KvEvent::STORED)
      .value("REMOVED", KvEvent::REMOVED)
      .value("CLEARED", KvEvent::CLEARED);
  nb::enum_<Rejection>(m, "Rejection", nb::is_arithmetic())
      .value("ACCEPTED", Rejection::ACCEPTED)
      .value("DUPLICATE_ID", Rejection::DUPLICATE_ID)
      .value("EMPTY_PROMPT", Rejection::EMPTY_PROMPT)
      .value("NEVER_FITS", Rejection::NEVER_FITS)
      .value("TOO_LONG", Rejection::TOO_LONG);
}

void bind_config(nb::module_& m) {
  nb::class_<CacheGroupConfig>(m, "CacheGroupConfig")
      .def("__init__",
           [](CacheGroupConfig* self, std::string kind, int page_size, int window) {
             new (self) CacheGroupConfig{std::move(kind), page_size, window};
           },
           nb::arg("kind"), nb::arg("page_size"), nb::arg("window") = 0)
      .def_ro("kind", &CacheGroupConfig::kind)
      .def_ro("page_size", &CacheGroupConfig::page_size)
      .def_ro("window", &CacheGroupConfig::window);

  const Config defaults;
  nb::class_<Config>(m, "Config")
      .def("__init__",
           [](Config* self, std::vector<CacheGroupConfig> groups, int num_pages, int max_seqs,
              int max_model_len, int max_step_tokens, double prefill_share, bool prefix_cache,
              int max_wait_steps, int max_row_tokens, int host_pages, int aging_ms, int max_bypass,
              double itl_target_ms, bool retention, bool kv_events, int hash_bits,
              std::uint64_t hash_seed) {
             Config config{std::move(groups), num_pages,      max_seqs,     max_model_len,
                           max_step_tokens,   prefill_share,  prefix_cache, max_wait_steps,
                           max_row_tokens,    host_pages,     aging_ms,     max_bypass,
                           itl_target_ms,     retention,      kv_events,    hash_bits,
                           hash_seed};
             check(config);
             new (self) Config(std::move(config));
           },
           nb::kw_only(), nb::arg("groups"), nb::arg("num_pages"), nb::arg("max_seqs"),
           nb::arg("max_model_len"), nb::arg("max_step_tokens"),
           nb::arg("prefill_share") = defaults.prefill_share,
           nb::arg("prefix_cache") = defaults.prefix_cache,
           nb::arg("max_wait_steps") = defaults.max_wait_steps,
           nb::arg("max_row_tokens") = defaults.max_row_tokens,
           nb::arg("host_pages") = defaults.host_pages,
           nb::arg("aging_ms") = defaults.aging_ms,
           nb::arg("max_bypass") = defaults.max_bypass,
           nb::arg("itl_target_ms") = defaults.itl_target_ms,
           nb::arg("retention") = defaults.retention,
           nb::arg("kv_events") = defaults.kv_events,
           nb::arg("hash_bits") = defaults.hash_bits,
           nb::arg("hash_seed") = defaults.hash_seed)
      .def_prop_ro("block_size",
                   [](const Config& config) { return Layout(config.groups).block_size(); });
}

void bind_plan(nb::module_& m) {
  nb::class_<SubmitResult>(m, "SubmitResult")
      .def_ro("rejection", &SubmitResult::rejection)
      .def_ro("needed", &SubmitResult::needed)
      .def_ro("available", &SubmitResult::available);
  nb::class_<PlanSummary>(m, "Plan")
      .def_ro("step", &PlanSummary::step)
      .def_ro("num_rows", &PlanSummary::num_rows)
      .def_ro("num_decode_rows", &PlanSummary::num_decode_rows)
      .def_ro("num_tokens", &PlanSummary::num_tokens)
      .def_ro("num_emits", &PlanSummary::num_emits)
      .def_ro("num_new_tenants", &PlanSummary::num_new_tenants)
      .def_ro("max_query_len", &PlanSummary::max_query_len)
      .def_ro("max_kv_len", &PlanSummary::max_kv_len)
      .def_prop_ro("num_deltas",
                   [](const PlanSummary& plan) {
                     return std::vector<int>(plan.num_deltas.begin(),
                                             plan.num_deltas.begin() + plan.num_groups);
                   })
      .def_ro("num_copies", &PlanSummary::num_copies)
      .def_ro("num_stores", &PlanSummary::num_stores)
      .def_ro("num_loads", &PlanSummary::num_loads)
      .def_ro("blocked", &PlanSummary::blocked)
      .def_ro("digest", &PlanSummary::digest);
}

// A column is a read-only view that keeps the whole object alive.
template <auto Member, class Columns>
void add_column(nb::class_<Columns>& type, const char* name) {
  using Column = std::remove_cvref_t<decltype(std::declval<Columns>().*Member)>;
  using Value = typename Column::value_type;
  type.def_prop_ro(name, [](nb::handle self) {
    const auto& column = nb::cast<const Columns&>(self).*Member;
    return nb::ndarray<nb::numpy, const Value, nb::ndim<1>>(column.data(), {column.size()}, self);
  });
}

template <class T>
nb::bytes as_bytes(const std::vector<T>& column) {
  return nb::bytes(column.data(), column.size() * sizeof(T));
}

// Requests that ended, and how.
std::vector<std::pair<RequestId, int>> ended(const UpdateColumns& updates) {
  std::vector<std::pair<RequestId, int>> found;
  for (std::size_t i = 0; i < updates.request.size(); ++i) {
    if (updates.finish[i] != static_cast<std::uint8_t>(Finish::NONE)) {
      found.emplace_back(updates.request[i], updates.finish[i]);
    }
  }
  return found;
}

void bind_updates(nb::module_& m) {
  nb::class_<UpdateColumns> updates(m, "Updates");
  add_column<&UpdateColumns::request>(updates, "request");
  add_column<&UpdateColumns::token_start>(updates, "token_start");
  add_column<&UpdateColumns::tokens>(updates, "tokens");
  add_column<&UpdateColumns::finish>(updates, "finish");
  add_column<&UpdateColumns::stop_token>(updates, "stop_token");
  add_column<&UpdateColumns::cached_tokens>(updates, "cached_tokens");
  updates.def("__len__", [](const UpdateColumns& columns) { return columns.request.size(); })
      .def("columns",
           [](const UpdateColumns& columns) {
             return nb::make_tuple(as_bytes(columns.request), as_bytes(columns.token_start),
                                   as_bytes(columns.tokens), as_bytes(columns.finish),
                                   as_bytes(columns.stop_token), as_bytes(columns.cached_tokens));
           })
      .def("ended", &ended);
}

void bind_kv_events(nb::module_& m) {
  nb::class_<KvEventColumns> events(m, "KvEvents");
  add_column<&KvEventColumns::kind>(events, "kind");
  add_column<&KvEventColumns::tier>(events, "tier");
  add_column<&KvEventColumns::group>(events, "group");
  add_column<&KvEventColumns::block>(events, "block");
  add_column<&KvEventColumns::parent>(events, "parent");
  add_column<&KvEventColumns::ns>(events, "namespace");
  add_column<&KvEventColumns::token_start>(events, "token_start");
  add_column<&KvEventColumns::tokens>(events, "tokens");
}

void bind_observations(nb::module_& m) {
  nb::class_<Ledger>(m, "Ledger")
      .def_ro("total", &Ledger::total)
      .def_ro("free", &Ledger::free)
      .def_ro("cached", &Ledger::cached)
      .def_ro("active", &Ledger::active)
      .def_ro("in_transfer", &Ledger::in_transfer)
      .def_ro("host_total", &Ledger::host_total)
      .def_ro("host_free", &Ledger::host_free)
      .def_ro("host_cached", &Ledger::host_cached)
      .def_ro("host_in_transfer", &Ledger::host_in_transfer)
      .def_ro("balanced", &Ledger::balanced)
      .def_ro("detail", &Ledger::detail);
  nb::class_<Gauges>(m, "Gauges")
      .def_ro("running", &Gauges::running)
      .def_ro("waiting", &Gauges::waiting)
      .def_ro("loading", &Gauges::loading)
      .def_ro("draining", &Gauges::draining)
      .def_ro("free_pages", &Gauges::free_pages)
      .def_ro("cached_pages", &Gauges::cached_pages)
      .def_ro("total_pages", &Gauges::total_pages)
      .def_ro("host_free_pages", &Gauges::host_free_pages)
      .def_ro("host_total_pages", &Gauges::host_total_pages)
      .def_ro("transfers", &Gauges::transfers)
      .def_ro("waiting_tokens", &Gauges::waiting_tokens);
  nb::class_<Counters>(m, "Counters")
      .def_ro("steps", &Counters::steps)
      .def_ro("prompt_tokens", &Counters::prompt_tokens)
      .def_ro("cached_tokens", &Counters::cached_tokens)
      .def_ro("host_cached_tokens", &Counters::host_cached_tokens)
      .def_ro("output_tokens", &Counters::output_tokens)
      .def_ro("retractions", &Counters::retractions)
      .def_ro("retractions_to_host", &Counters::retractions_to_host)
      .def_ro("evictions", &Counters::evictions)
      .def_ro("host_evictions", &Counters::host_evictions)
      .def_ro("page_copies", &Counters::page_copies)
      .def_ro("adoptions", &Counters::adoptions)
      .def_ro("stored_pages", &Counters::stored_pages)
      .def_ro("loaded_pages", &Counters::loaded_pages)
      .def_ro("failed_transfers", &Counters::failed_transfers)
      .def_ro("sessions_returned", &Counters::sessions_returned)
      .def_ro("kept_sessions", &Counters::kept_sessions)
      .def_ro("ignored_events", &Counters::ignored_events)
      .def_ro("rejected_events", &Counters::rejected_events)
      .def_ro("prefix_waits", &Counters::prefix_waits)
      .def_ro("bypasses", &Counters::bypasses);
}

}  // namespace

void bind_values(nb::module_& m) {
  bind_enums(m);
  bind_config(m);
  bind_plan(m);
  bind_updates(m);
  bind_kv_events(m);
  bind_observations(m);
}

}  // namespace tokenspeed::bindings
