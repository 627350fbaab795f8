// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "fuzz/random.h"
#include "fuzz/rank.h"
#include "fuzz/truth.h"

namespace tokenspeed::fuzz {

// What came back from one row.
struct RowOutcome {
  std::vector<TokenId> tokens;
  bool failed = false;
};

// How a row shall go.
enum class Luck { GOOD, FAILS, BAD_TOKEN };

// What the guesses behind a decode row's first token are worth.
struct Guesses {
  bool given = false;        // by the host, with the plan; else the device makes its own
  int accept_percent = 60;   // of the device's own
};

// A request as the device meets it.
struct Computation {
  explicit Computation(Question question) : truth(std::move(question)) {}

  Truth truth;
  bool poisoned = false;  // a row failed: what is computed after it no longer means anything
};

// Executes plans in order and notices every page mix-up. It knows what a device knows: page
// tables built from deltas and a store addressed by (page, offset). The "KV" of a token is a hash
// of its whole prefix and of the group; a row checks all that its attention would read. A page
// that is shared, reused, evicted, moved or published wrongly shows as a KV that is not the
// row's own. Transfers move their bytes when they are acked, and until then watch both ends.
class Device {
 public:
  explicit Device(const Config& config);

  // Deltas, then copies, then transfers begin.
  void begin_step(const Arrays& arrays, const PlanSummary& plan);
  RowOutcome run_row(const Arrays& arrays, int row, Computation& computation, Luck luck,
                     Guesses guesses, Random& random);
  void committed(std::int64_t step) noexcept { committed_ = step; }

  // The bytes of a transfer arrived, or did not.
  void end_transfer(std::uint64_t transfer, bool ok);
  const std::map<std::uint64_t, std::int64_t>& transfers() const noexcept { return begun_; }

  bool is_load(TransferId transfer) const { return transfers_.at(transfer).is_load; }
  // visit(is_load, device page, host page) of every move in flight.
  template <class F>
  void for_each_move(F&& visit) const {
    for (const auto& [_, transfer] : transfers_) {
      for (const Move& move : transfer.moves) {
        transfer.is_load ? visit(true, move.target, move.source)
                         : visit(false, move.source, move.target);
      }
    }
  }

  // The table of a slot's tenant says what the scheduler says, wherever that still reads.
  void check_table(SlotId slot, int group, const std::vector<PageId>& expected) const;

 private:
  struct PageState {
    std::vector<Kv> kv;
    std::int64_t touched = -1;  // the last step that reads or writes it
    std::int64_t written = -1;
    int stores = 0;  // transfers that read it
    int loads = 0;   // transfers that write it
  };
  struct Move {
    PageId source;
    PageId target;
  };
  struct Transfer {
    bool is_load = false;
    std::vector<Move> moves;
  };
  struct Tenant {
    Epoch epoch = 0;
    Epoch installed = 0;                      // the epoch whose sampling state is in place
    int length = 0;                           // tokens whose KV is in place
    std::vector<std::vector<PageId>> tables;  // per group
  };
  struct Span {
    int begin;
    int end;
  };

  static Kv garbage() noexcept { return 13; }
  Kv in_group(Kv kv, int group) const noexcept { return scramble(kv + static_cast<Kv>(group) + 1); }
  PageState& page(PageId id);
  PageState& host_page(PageId id);
  Tenant& tenant(SlotId slot);
  bool is_state(int group) const;
  PageId page_of(const Tenant& tenant, int group, int position) const;
  Kv& at(const Tenant& tenant, int group, int position, bool writes);

  void apply_delta(int group, SlotId slot, Epoch epoch, int index, PageId id);
  void copy(PageId source, PageId target);
  void begin_transfer(std::uint64_t transfer, bool is_load, Move move);
  void check_visible(const Tenant& tenant, int start, Truth& truth);
  void write(const Tenant& tenant, int position, Kv kv);
  void write_state(const Tenant& tenant, int position, Kv kv);
  void prefill(const Arrays& arrays, Span tokens, Tenant& tenant, Computation& computation,
               bool fails);
  std::vector<TokenId> decode(Span tokens, Tenant& tenant, Computation& computation, bool fails,
                              int accepted);

  Config config_;
  std::int64_t step_ = -1;
  std::int64_t committed_ = -1;
  std::vector<PageState> pages_;
  std::vector<PageState> host_pages_;
  std::vector<Tenant> tenants_;
  std::map<std::uint64_t, Transfer> transfers_;
  std::map<std::uint64_t, std::int64_t> begun_;  // transfer -> the step that began it
};

}  // namespace tokenspeed::fuzz
