// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "schedule/ledger.h"

#include <vector>

namespace tokenspeed {
namespace {

class Audit {
 public:
  explicit Audit(int total) : owners_(static_cast<std::size_t>(total) + 1, 0) {}

  void count(PageId page, int& account) {
    account += 1;
    if (page < 1 || page >= static_cast<PageId>(owners_.size())) {
      complain("page " + std::to_string(page) + " does not exist");
    } else if (++owners_[static_cast<std::size_t>(page)] == 2) {
      complain("page " + std::to_string(page) + " has two owners");
    }
  }
  void find_lost() {
    for (std::size_t page = 1; page < owners_.size(); ++page) {
      if (owners_[page] == 0) {
        complain("page " + std::to_string(page) + " has no owner");
      }
    }
  }
  void complain(const std::string& what) { complaints_ += "; " + what; }
  const std::string& complaints() const { return complaints_; }

 private:
  std::vector<int> owners_;
  std::string complaints_;
};

// How many requests' pins run through each node, found from the requests.
std::vector<int> walk_pins(const PrefixTree& tree, const Roster& roster, int total) {
  std::vector<int> pins(static_cast<std::size_t>(total), 0);
  roster.for_each([&](const Request& request) {
    const Reservation* reservation = fsm::reservation_of(request.state);
    NodeId node = reservation == nullptr ? kRootNode : reservation->pin().tip();
    for (; node != kRootNode; node = tree.parent_of(node)) {
      pins[static_cast<std::size_t>(node)] += 1;
    }
  });
  return pins;
}

void audit_tree(const PrefixTree& tree, const Roster& roster, Audit& audit, Ledger& ledger) {
  const std::vector<int> walked = walk_pins(tree, roster, ledger.total);
  tree.for_each_node([&](NodeId node, int pins) {
    audit.count(tree.page_of(node), pins > 0 ? ledger.active : ledger.cached);
    if (pins != walked[static_cast<std::size_t>(node)]) {
      audit.complain("node of page " + std::to_string(tree.page_of(node)) + " counts " +
                     std::to_string(pins) + " pins but " +
                     std::to_string(walked[static_cast<std::size_t>(node)]) + " hold it");
    }
  });
  if (tree.evictable() != ledger.cached) {
    audit.complain("the tree counts " + std::to_string(tree.evictable()) + " evictable pages");
  }
}

}  // namespace

Ledger take_ledger(const Resources& resources, const Roster& roster) {
  Ledger ledger;
  ledger.total = resources.pages().total();
  Audit audit(ledger.total);
  for (const PageId page : resources.pages().free_pages()) {
    audit.count(page, ledger.free);
  }
  if (resources.tree() != nullptr) {
    audit_tree(*resources.tree(), roster, audit, ledger);
  }
  const int pinned = ledger.active;
  roster.for_each([&](const Request& request) {
    if (const Reservation* reservation = fsm::reservation_of(request.state)) {
      reservation->for_each_page([&](PageId page) { audit.count(page, ledger.active); });
    }
  });
  audit.find_lost();
  const int sum = ledger.free + ledger.cached + ledger.active + ledger.in_transfer;
  ledger.balanced = sum == ledger.total && audit.complaints().empty();
  ledger.detail = "total " + std::to_string(ledger.total) + " = free " +
                  std::to_string(ledger.free) + " + cached " + std::to_string(ledger.cached) +
                  " + active " + std::to_string(ledger.active) + " (pinned in the tree " +
                  std::to_string(pinned) + ", held by requests " +
                  std::to_string(ledger.active - pinned) + ") + in transfer 0" +
                  audit.complaints();
  return ledger;
}

}  // namespace tokenspeed
