// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <map>

#include "fuzz/world.h"

namespace tokenspeed::fuzz {
namespace {

class Fingerprint {
 public:
  void add(std::uint64_t word) noexcept {
    hash_ = scramble(hash_ ^ (word + 0x9e3779b97f4a7c15ULL));
  }
  void add(int word) noexcept { add(static_cast<std::uint64_t>(word)); }
  // A page's number means nothing: it is named by where it was met first.
  void add_page(PageId page) {
    const int next = static_cast<int>(names_.size()) + 1;
    add(page == kNullPage ? 0 : names_.try_emplace(page, next).first->second);
  }
  std::uint64_t value() const noexcept { return hash_; }

 private:
  std::uint64_t hash_ = 0;
  std::map<PageId, int> names_;
};

}  // namespace

// What is left out: the order of eviction, and how long something has waited. States that differ
// in nothing else count as one.
std::uint64_t World::fingerprint() {
  Fingerprint print;
  for (RequestId id = 1; id <= clients_.size(); ++id) {
    const Client& it = client(id);
    const Question& question = it.computation.truth.question();
    print.add(question.prompt.empty() ? 0 : question.prompt.back());
    print.add(question.prompt.size());
    print.add(it.received);
    print.add(static_cast<int>(it.finish));
    print.add(it.computation.poisoned ? 1 : 0);
    print.add(it.drafts_for == num_plans() ? 1 + it.drafts.size() : 0);
    for (std::size_t i = 0; it.drafts_for == num_plans() && i < it.drafts.size(); ++i) {
      print.add(it.drafts[i]);
    }
    print.add(question.deadline_ms != 0 && question.deadline_ms <= now_ms_ ? 1 : 0);
    for (int group = 0; group < static_cast<int>(config_.groups.size()); ++group) {
      const std::vector<PageId> table = first().page_table(id, group);
      print.add(table.size());
      for (const PageId page : table) {
        print.add_page(page);
      }
    }
  }
  print.add(in_flight_.size());
  for (const Flight& flight : in_flight_) {
    print.add(flight.requests.size());
    for (std::size_t row = 0; row < flight.requests.size(); ++row) {
      print.add(flight.requests[row]);
      print.add(flight.kv_lens[row]);
      print.add(flight.counts[row]);
      print.add(flight.failed[row]);
    }
  }
  device_.for_each_move([&](bool is_load, PageId on_device, PageId) {
    print.add(is_load ? 1 : 2);
    print.add_page(on_device);
  });
  take_kv_events();
  mirror_.for_each([&](int tier, int group, PageKey block) {
    print.add(tier);
    print.add(group);
    print.add(block);
  });
  const Gauges gauges = first().gauges();
  for (const int gauge : {gauges.running, gauges.waiting, gauges.loading, gauges.draining,
                          gauges.free_pages, gauges.cached_pages, gauges.host_free_pages,
                          gauges.transfers, static_cast<int>(gauges.waiting_tokens)}) {
    print.add(gauge);
  }
  return print.value();
}

}  // namespace tokenspeed::fuzz
