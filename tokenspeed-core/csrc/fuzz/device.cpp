// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "fuzz/device.h"

#include <algorithm>
#include <span>
#include <string>

#include "fuzz/failure.h"

namespace tokenspeed::fuzz {
namespace {

std::size_t index(int i) noexcept { return static_cast<std::size_t>(i); }

// How many of a decode row's guesses are right, up to the first that is not.
int num_right(std::span<const TokenId> drafts, int position, Truth& truth) {
  int right = 0;
  while (index(right) < drafts.size() && drafts[index(right)] == truth.token(position + right)) {
    ++right;
  }
  return right;
}

int num_lucky(int drafts, int accept_percent, Random& random) {
  int right = 0;
  while (right < drafts && random.chance(accept_percent)) {
    ++right;
  }
  return right;
}

}  // namespace

Device::Device(const Config& config)
    : config_(config),
      pages_(index(config.num_pages + 1)),
      host_pages_(index(config.host_pages + 1)),
      tenants_(index(config.max_seqs + 1)) {
  int offsets = 1;
  for (const CacheGroupConfig& group : config.groups) {
    offsets = std::max(offsets, group.page_size);
  }
  for (auto* pages : {&pages_, &host_pages_}) {
    for (PageState& state : *pages) {
      state.kv.assign(index(offsets), garbage());
    }
  }
  for (Tenant& tenant : tenants_) {
    tenant.tables.resize(config.groups.size());
  }
}

Device::PageState& Device::page(PageId id) {
  require(id >= 1 && id <= config_.num_pages, "a device page that does not exist",
          std::to_string(id));
  return pages_[index(id)];
}

Device::PageState& Device::host_page(PageId id) {
  require(id >= 1 && id <= config_.host_pages, "a host page that does not exist",
          std::to_string(id));
  return host_pages_[index(id)];
}

Device::Tenant& Device::tenant(SlotId slot) {
  require(slot >= 1 && slot <= config_.max_seqs, "a slot that does not exist");
  return tenants_[index(slot)];
}

bool Device::is_state(int group) const { return config_.groups[index(group)].kind == "state"; }

// -- Pages ----------------------------------------------------------------------------------------

PageId Device::page_of(const Tenant& tenant, int group, int position) const {
  const auto& table = tenant.tables[index(group)];
  // A state group has one page, which every row overwrites.
  const std::size_t entry =
      is_state(group) ? 0 : index(position / config_.groups[index(group)].page_size);
  return entry < table.size() ? table[entry] : kNullPage;
}

Kv& Device::at(const Tenant& tenant, int group, int position, bool writes) {
  const PageId id = page_of(tenant, group, position);
  require(id != kNullPage, "a row needs a page that its table lacks");
  PageState& state = page(id);
  require(state.loads == 0, "a row uses a page that a load still writes");
  require(!writes || state.stores == 0, "a row writes a page that a store still reads");
  state.touched = step_;
  state.written = writes ? step_ : state.written;
  const int offset = is_state(group) ? 0 : position % config_.groups[index(group)].page_size;
  return state.kv[index(offset)];
}

void Device::apply_delta(int group, SlotId slot, Epoch epoch, int entry, PageId id) {
  Tenant& owner = tenant(slot);
  if (epoch < owner.epoch) {
    return;  // of a tenant that left in the step in which it came
  }
  if (epoch > owner.epoch) {
    owner.epoch = epoch;
    owner.length = -1;
    for (auto& table : owner.tables) {
      table.clear();
    }
  }
  page(id);
  auto& table = owner.tables[index(group)];
  require(entry >= 0 && entry <= config_.max_model_len + config_.max_row_tokens,
          "a delta beyond the table");
  if (index(entry) >= table.size()) {
    table.resize(index(entry) + 1, kNullPage);
  }
  table[index(entry)] = id;
}

void Device::copy(PageId source, PageId target) {
  PageState& from = page(source);
  PageState& into = page(target);
  require(source != target, "a page is copied onto itself");
  require(from.loads == 0 && into.loads == 0, "a copy uses a page that a load still writes");
  require(into.stores == 0, "a copy writes a page that a store still reads");
  into.kv = from.kv;
  from.touched = into.touched = into.written = step_;
}

// -- Transfers ------------------------------------------------------------------------------------

// They run beside the steps: what they read is complete, and what they write nobody uses.
void Device::begin_transfer(std::uint64_t id, bool is_load, Move move) {
  const auto [entry, is_new] = transfers_.try_emplace(id, Transfer{is_load, {}});
  const auto [begun, _] = begun_.try_emplace(id, step_);
  Transfer& transfer = entry->second;
  require(is_new || begun->second == step_, "a transfer's id is used again before its ack");
  require(transfer.is_load == is_load, "a transfer in both directions");
  PageState& on_device = page(is_load ? move.target : move.source);
  PageState& on_host = host_page(is_load ? move.source : move.target);
  require(on_device.loads == 0 && on_host.stores == 0, "a page in two transfers, one writing it");
  if (is_load) {
    require(on_device.touched <= committed_ && on_device.stores == 0,
            "a load into a page that is still in use");
    on_device.loads += 1;
    on_host.loads += 1;
  } else {
    require(on_device.written <= committed_, "a store of a page that is still being written");
    require(on_host.loads == 0, "a store into a host page that a load still reads");
    on_device.stores += 1;
    on_host.stores += 1;
  }
  transfer.moves.push_back(move);
}

void Device::end_transfer(std::uint64_t id, bool ok) {
  const auto entry = transfers_.find(id);
  require(entry != transfers_.end(), "the ack of an unknown transfer was accepted");
  const Transfer& transfer = entry->second;
  for (const Move& move : transfer.moves) {
    PageState& on_device = page(transfer.is_load ? move.target : move.source);
    PageState& on_host = host_page(transfer.is_load ? move.source : move.target);
    PageState& from = transfer.is_load ? on_host : on_device;
    PageState& into = transfer.is_load ? on_device : on_host;
    (transfer.is_load ? on_device.loads : on_device.stores) -= 1;
    (transfer.is_load ? on_host.loads : on_host.stores) -= 1;
    if (ok) {
      into.kv = from.kv;
    } else {
      into.kv.assign(into.kv.size(), garbage());
    }
  }
  transfers_.erase(entry);
  begun_.erase(id);
}

// -- A step ---------------------------------------------------------------------------------------

void Device::begin_step(const Arrays& a, const PlanSummary& plan) {
  step_ = plan.step;
  for (int g = 0; g < a.num_groups; ++g) {
    for (int i = 0; i < a.num_deltas(plan, g); ++i) {
      const std::size_t d = a.delta(g, i);
      apply_delta(g, a.delta_slot[d], a.delta_epoch[d], a.delta_index[d], a.delta_page[d]);
    }
  }
  for (int i = 0; i < plan.num_stores; ++i) {
    const std::size_t x = index(i);
    begin_transfer(a.store_transfer[x], false, {a.store_source[x], a.store_target[x]});
  }
  for (int i = 0; i < plan.num_loads; ++i) {
    const std::size_t x = index(i);
    begin_transfer(a.load_transfer[x], true, {a.load_source[x], a.load_target[x]});
  }
  for (int i = 0; i < plan.num_copies; ++i) {
    copy(a.copy_source[index(i)], a.copy_target[index(i)]);
  }
}

// All that attention reads of the tokens before `start`, and the recurrent states at it.
void Device::check_visible(const Tenant& tenant, int start, Truth& truth) {
  for (int g = 0; g < static_cast<int>(config_.groups.size()); ++g) {
    const CacheGroupConfig& group = config_.groups[index(g)];
    const int first = group.kind == "full"      ? 0
                      : group.kind == "sliding" ? std::max(0, start - group.window + 1)
                                                : std::max(0, start - 1);
    for (int position = first; position < start; ++position) {
      require(at(tenant, g, position, false) == in_group(truth.kv(position), g),
              "a row reads KV that is not its own",
              "request " + std::to_string(truth.question().id) + ", group " + std::to_string(g) +
                  ", position " + std::to_string(position));
    }
  }
}

void Device::write(const Tenant& tenant, int position, Kv kv) {
  for (int g = 0; g < static_cast<int>(config_.groups.size()); ++g) {
    if (!is_state(g)) {
      at(tenant, g, position, true) = in_group(kv, g);
    }
  }
}

void Device::write_state(const Tenant& tenant, int position, Kv kv) {
  for (int g = 0; g < static_cast<int>(config_.groups.size()); ++g) {
    if (is_state(g)) {
      at(tenant, g, position, true) = in_group(kv, g);
    }
  }
}

void Device::prefill(const Arrays& a, Span span, Tenant& tenant, Computation& computation,
                     bool fails) {
  const int start = tenant.length;
  for (int i = span.begin; i < span.end; ++i) {
    const int position = start + i - span.begin;
    require(a.token_ids[index(i)] == computation.truth.token(position),
            "a row computes tokens that are not its own");
    write(tenant, position, fails ? garbage() : computation.truth.kv(position));
  }
  tenant.length = start + span.end - span.begin;
  const int last = tenant.length - 1;
  write_state(tenant, last, fails ? garbage() : computation.truth.kv(last));
}

// The tokens that a decode row returns: right drafts, as many as stand in front, and one more.
std::vector<TokenId> Device::decode(Span span, Tenant& tenant, Computation& computation, bool fails,
                                    int accepted) {
  Truth& truth = computation.truth;
  const int start = tenant.length;
  const int drafts = span.end - span.begin - 1;
  std::vector<TokenId> tokens;
  for (int i = 0; i <= drafts; ++i) {
    const bool right = !fails && i <= accepted;
    write(tenant, start + i, right ? truth.kv(start + i) : garbage());
    if (i <= accepted) {
      tokens.push_back(truth.token(start + i + 1));
    }
  }
  tenant.length = start + 1 + accepted;
  write_state(tenant, tenant.length - 1, fails ? garbage() : truth.kv(tenant.length - 1));
  return tokens;
}

RowOutcome Device::run_row(const Arrays& a, int row, Computation& computation, Luck luck,
                           Guesses guesses, Random& random) {
  const std::size_t r = index(row);
  const Span span{a.row_query_start[r], a.row_query_start[r + 1]};
  const int planned_start = a.row_kv_len[r] - (span.end - span.begin);
  const bool decodes = (a.row_flags[r] & DECODE) != 0;
  Tenant& owner = tenant(a.row_slot[r]);
  require(owner.epoch == a.row_epoch[r], "a row of another tenant");
  require(((a.row_flags[r] & NEW_TENANT) != 0) == (owner.installed != owner.epoch),
          "NEW_TENANT does not stand at the first step of a tenant, or stands at another");
  for (int i = span.begin; i < span.end; ++i) {
    require(a.positions[index(i)] == planned_start + i - span.begin, "a position is wrong");
  }
  if (owner.installed != owner.epoch) {
    owner.installed = owner.epoch;
    owner.length = planned_start;
    require(!decodes, "the first row of a tenant decodes");
  }
  require(decodes && config_.max_row_tokens > 1 ? planned_start >= owner.length
                                                : planned_start == owner.length,
          "a row starts elsewhere than the row before ended");
  computation.poisoned |= luck == Luck::FAILS;
  const bool fails = computation.poisoned;
  if (!fails) {
    check_visible(owner, owner.length, computation.truth);
  }
  RowOutcome outcome;
  outcome.failed = luck == Luck::FAILS;
  if (decodes) {
    const int drafts = span.end - span.begin - 1;
    const auto inputs = std::span(a.token_ids).subspan(index(span.begin + 1), index(drafts));
    const int right = guesses.given ? num_right(inputs, owner.length + 1, computation.truth)
                                    : num_lucky(drafts, guesses.accept_percent, random);
    outcome.tokens = decode(span, owner, computation, fails, right);
  } else {
    prefill(a, span, owner, computation, fails);
    if ((a.row_flags[r] & EMITS) != 0) {
      outcome.tokens = {computation.truth.token(owner.length)};
    }
  }
  if (luck == Luck::BAD_TOKEN && !outcome.tokens.empty()) {
    outcome.tokens.front() = -1;
    computation.poisoned = true;
  }
  return outcome;
}

void Device::check_table(SlotId slot, int group, const std::vector<PageId>& expected) const {
  const auto& table = tenants_[index(slot)].tables[index(group)];
  for (std::size_t i = 0; i < expected.size(); ++i) {
    require(expected[i] == kNullPage || (i < table.size() && table[i] == expected[i]),
            "the device's page table is not what the scheduler believes");
  }
}

}  // namespace tokenspeed::fuzz
