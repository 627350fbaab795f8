// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/ledger.h"

#include <vector>

namespace tokenspeed {
namespace {

// Counts every page of one pool once.
class Audit {
 public:
  Audit(const char* name, const PagePool& pool)
      : name_(name), owners_(static_cast<std::size_t>(pool.total()) + 1, 0) {}

  void count(PageId page, int& account) {
    account += 1;
    if (page < 1 || page >= static_cast<PageId>(owners_.size())) {
      complain(page, "does not exist");
    } else if (++owners_[static_cast<std::size_t>(page)] == 2) {
      complain(page, "has two owners");
    }
  }
  void find_lost() {
    for (std::size_t page = 1; page < owners_.size(); ++page) {
      if (owners_[page] == 0) {
        complain(static_cast<PageId>(page), "has no owner");
      }
    }
  }
  const std::string& complaints() const { return complaints_; }

 private:
  void complain(PageId page, const char* what) {
    complaints_ += std::string("; ") + name_ + " page " + std::to_string(page) + " " + what;
  }

  const char* name_;
  std::vector<int> owners_;
  std::string complaints_;
};

// Who holds each part of each node, found from the holders.
class Holds {
 public:
  Holds(const PrefixTree& tree, const Transfers& transfers, const Roster& roster,
        const KvCache& cache)
      : parts_(tree.layout().num_parts()) {
    roster.for_each([&](const Request& request) {
      if (const Reservation* reservation = fsm::reservation_of(request.state)) {
        reservation->for_each_pin([&](const TreePin& pin) { walk(pin, &Count::requests); });
      }
    });
    transfers.for_each_pin([&](const TreePin& pin) { walk(pin, &Count::transfers); });
    cache.for_each_kept([&](const TreePin& pin) { walk(pin, &Count::kept); });
  }

  struct Count {
    int requests = 0;
    int transfers = 0;
    int kept = 0;
  };
  Count of(NodeId node, int part) const {
    const std::size_t i = index(node, part);
    return i < counts_.size() ? counts_[i] : Count{};
  }

 private:
  std::size_t index(NodeId node, int part) const {
    return static_cast<std::size_t>(node) * static_cast<std::size_t>(parts_) +
           static_cast<std::size_t>(part);
  }
  void walk(const TreePin& pin, int Count::* who) {
    for (int i = 0; i < pin.depth(); ++i) {
      for (int p = 0; p < parts_; ++p) {
        const std::size_t at = index(pin.node(i), p);
        counts_.resize(std::max(counts_.size(), at + 1));
        if (pin.holds(p, i)) {
          counts_[at].*who += 1;
        }
      }
    }
  }

  int parts_;
  std::vector<Count> counts_;
};

std::string audit_tree(const KvCache& cache, const Holds& holds, Audit& device, Audit& host,
                       Ledger& ledger) {
  std::string complaints;
  const PrefixTree& tree = *cache.tree();
  int reclaimable = 0;
  tree.for_each_part([&](const PrefixTree::NodeView& view) {
    const Holds::Count count = holds.of(view.id, view.part);
    if (view.pins != count.requests + count.transfers || view.kept != count.kept) {
      complaints += "; node " + std::to_string(view.id) + " part " + std::to_string(view.part) +
                    " counts " + std::to_string(view.pins) + " pins and " +
                    std::to_string(view.kept) + " kept, but " + std::to_string(count.requests) +
                    " requests, " + std::to_string(count.transfers) + " transfers and " +
                    std::to_string(count.kept) + " sessions hold it";
    }
    int& account = count.requests > 0    ? ledger.active
                   : count.transfers > 0 ? ledger.in_transfer
                                         : ledger.cached;
    const Part& part = tree.layout().part(view.part);
    for (int entry = part.first_entry; entry < part.first_entry + part.entries; ++entry) {
      if (const PageId page = tree.page_of(view.id, entry); page != kNullPage) {
        device.count(page, account);
        reclaimable += view.pins == 0 ? 1 : 0;
      }
      if (!cache.has_host_tier()) {
        continue;
      }
      if (const PageId page = tree.host_page_of(view.id, entry); page != kNullPage) {
        host.count(page, ledger.host_cached);
      }
    }
  });
  if (reclaimable != cache.cached_pages()) {
    complaints += "; the cache counts " + std::to_string(cache.cached_pages()) +
                  " pages that it can give, and " + std::to_string(reclaimable) + " are";
  }
  return complaints;
}

std::string describe(const Ledger& ledger) {
  const auto term = [](const char* name, int value) {
    return std::string(name) + " " + std::to_string(value);
  };
  std::string text = term("total", ledger.total) + " = " + term("free", ledger.free) + " + " +
                     term("cached", ledger.cached) + " + " + term("active", ledger.active) + " + " +
                     term("in transfer", ledger.in_transfer);
  if (ledger.host_total > 0) {
    text += "; " + term("host total", ledger.host_total) + " = " + term("free", ledger.host_free) +
            " + " + term("cached", ledger.host_cached) + " + " +
            term("in transfer", ledger.host_in_transfer);
  }
  return text;
}

}  // namespace

Ledger take_ledger(const KvCache& cache, const Transfers& transfers, const Roster& roster) {
  Ledger ledger;
  ledger.total = cache.device().total();
  ledger.host_total = cache.host().total();
  Audit device("device", cache.device());
  Audit host("host", cache.host());
  for (const PageId page : cache.device().free_pages()) {
    device.count(page, ledger.free);
  }
  for (const PageId page : cache.host().free_pages()) {
    host.count(page, ledger.host_free);
  }
  std::string complaints;
  if (cache.tree() != nullptr) {
    const Holds holds(*cache.tree(), transfers, roster, cache);
    complaints = audit_tree(cache, holds, device, host, ledger);
  }
  roster.for_each([&](const Request& request) {
    if (const Reservation* reservation = fsm::reservation_of(request.state)) {
      reservation->for_each_page([&](PageId page) { device.count(page, ledger.active); });
    }
  });
  transfers.for_each_target([&](Tier to, PageId page) {
    to == Tier::HOST ? host.count(page, ledger.host_in_transfer)
                     : device.count(page, ledger.in_transfer);
  });
  device.find_lost();
  host.find_lost();
  complaints += device.complaints() + host.complaints();
  const int sum = ledger.free + ledger.cached + ledger.active + ledger.in_transfer;
  const int host_sum = ledger.host_free + ledger.host_cached + ledger.host_in_transfer;
  ledger.balanced =
      sum == ledger.total && host_sum == ledger.host_total && complaints.empty();
  ledger.detail = describe(ledger) + complaints;
  return ledger;
}

}  // namespace tokenspeed
