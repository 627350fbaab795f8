// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <array>
#include <cassert>
#include <span>
#include <vector>

#include "cache/kv_events.h"
#include "cache/layout.h"
#include "cache/page_pool.h"
#include "cache/prefix.h"
#include "cache/tree_pin.h"
#include "types.h"

namespace tokenspeed {

// The longest resident prefix. It holds nothing: it is valid until the tree changes.
struct Match {
  std::vector<NodeId> path;  // every node whose tokens match, the deepest last
  int blocks = 0;            // of these, warm for every part on any tier
  int load_pages = 0;        // device pages that must come from the host tier first
  int load_blocks = 0;       // blocks that need some of these
  int reclaimable = 0;       // of its device pages, how many an eviction could take now
  bool loading = false;      // another transfer is bringing some of it right now
  NodeId source = kNoNode;   // a block whose first tokens match too, to be copied or adopted
  int partial = 0;           // how many tokens of it

  int tokens(int block_size) const noexcept { return blocks * block_size + partial; }
  void clear() noexcept {
    path.clear();
    blocks = load_pages = load_blocks = reclaimable = partial = 0;
    loading = false;
    source = kNoNode;
  }
};

// What may happen to a resident part: an eviction takes it, or only once the cache gave up a
// kept session, or nobody does.
enum class Grip : std::uint8_t { FREE, KEPT, PINNED };

// Which token prefixes are resident, and on which tier. A node is one full block, or a "tail": the
// unfinished last block of a request that ended. It owns pages per part and tier; a part may be
// missing (its window passed, or no checkpoint was taken there).
//
// Free parts stand in one list per tier and part, in the order in which they were given up. Pins
// cover paths and end deepest first, so in the list of full parts every node stands before its
// parent: its head is always a leaf, and evicting from the head is least-recently-used order in
// O(1), without a clock. Between the lists, the older head goes first.
class PrefixTree {
 public:
  PrefixTree(const Layout& layout, PagePool& device, PagePool& host, KvEventLog& events);
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  ~PrefixTree() { assert(page_count(Grip::PINNED) == 0 && "a pin outlived the tree"); }

  // The longest resident prefix of at most max_tokens tokens. Changes nothing; `match` is reused.
  void match(const Prefix& prefix, int max_tokens, Match& match) const;

  // `capacity`: the most nodes that the pin can come to cover.
  TreePin pin(const Match& match, int capacity);
  // Holds what another pin holds.
  TreePin hold_path(const TreePin& pin, HoldKind kind);
  // Turns a pin into a hold of a kept session.
  void keep(TreePin& pin) noexcept;
  // One node more, where the pin has the room.
  void extend(TreePin& pin, NodeId node) noexcept;
  // Of the state part: hold the deepest checkpoint of the path too.
  void hold_checkpoint(TreePin& pin) noexcept;
  // One node whose path somebody pins.
  TreePin pin_node(NodeId node);

  // Hands the block that follows the pinned path to the tree and moves the pin onto it. `pages`
  // holds one page per entry, empty where there is none. What the tree did not take because an
  // equal page is there and others read it stays in `pages`: a "twin". False when no node is left.
  bool publish(TreePin& pin, const BlockContent& content, std::span<Page> pages) noexcept;

  // The unfinished block after the path; kNoNode when the tree has all of its tokens already.
  NodeId publish_tail(const TreePin& pin, Namespace ns, std::span<const TokenId> tokens,
                      std::span<Page> pages) noexcept;

  // Takes a tail out of the tree when nobody holds it: its pages go to `pages`.
  bool adopt(NodeId tail, std::span<Page> pages) noexcept;

  // Gives `page` to the node in exchange for its equal, when only `pins` pins hold that one.
  bool exchange(NodeId node, int entry, Page& page, int pins) noexcept;

  // One more page of a node; dropped when the entry is taken.
  void attach(Tier tier, NodeId node, int entry, Page page) noexcept;

  // The host copy of a part is not to be trusted.
  void drop_host(NodeId node, int part) noexcept { drop_pages(Tier::HOST, node, part); }

  // Frees the least recently used free part of a tier; false when there is none. Returns its pages.
  int evict(Tier tier) noexcept;

  PageId page_of(NodeId id, int entry) const noexcept { return page(Tier::DEVICE, id, entry).id(); }
  PageId host_page_of(NodeId id, int entry) const noexcept {
    return page(Tier::HOST, id, entry).id();
  }
  bool is_tail(NodeId id) const noexcept { return at(id).fill < layout_.block_size(); }
  bool resident(Tier tier, NodeId id, int part) const noexcept {
    return part_of(id, part).pages[index(tier)] > 0;
  }

  // A transfer to the host, or back, is under way.
  bool is_storing(NodeId id, int part) const noexcept { return part_of(id, part).storing; }
  void set_storing(NodeId id, int part, bool storing) noexcept {
    part_of(id, part).storing = storing;
  }
  void set_loading(NodeId id, int part, bool loading) noexcept {
    part_of(id, part).loading = loading;
  }

  // Tells the event log of every resident block anew, parents first: at most reportable() events.
  void report_all() noexcept;
  int num_nodes() const noexcept { return num_nodes_; }
  std::size_t reportable() const noexcept {
    return static_cast<std::size_t>(num_nodes_) * layout_.parts().size() * 2;
  }

  int page_count(Grip grip) const noexcept { return pages_[static_cast<std::size_t>(grip)]; }
  bool has_free(Tier tier) const noexcept {
    for (const List& list : lists_[index(tier)]) {
      if (list.oldest != kNoNode) return true;
    }
    return false;
  }
  int fill(NodeId id) const noexcept { return at(id).fill; }
  // Grows whenever device pages stop being pinned.
  std::uint64_t releases() const noexcept { return releases_; }

  // For the ledger: what is held, found in the nodes.
  struct NodeView {
    NodeId id;
    int part;
    int pins;
    int kept;
  };
  template <class F>
  void for_each_part(F&& visit) const {
    for (NodeId id = 1; id < static_cast<NodeId>(nodes_.size()); ++id) {
      if (at(id).fill == 0) continue;
      for (int p = 0; p < layout_.num_parts(); ++p) {
        visit(NodeView{id, p, hold(id, p).pins, hold(id, p).kept});
      }
    }
  }
  const Layout& layout() const noexcept { return layout_; }

  // Empty pages, one per entry of a block, for whoever hands a block over.
  std::span<Page> staging() noexcept { return staging_; }

 private:
  friend class TreePin;

  struct Hold {
    int pins = 0;
    int kept = 0;
    bool any() const noexcept { return pins > 0 || kept > 0; }
    Grip grip() const noexcept {
      return pins > 0 ? Grip::PINNED : kept > 0 ? Grip::KEPT : Grip::FREE;
    }
  };
  struct Node {
    PageKey key = 0;
    Namespace ns = 0;
    Hold hold;  // of the node and its full part
    NodeId parent = kRootNode;
    NodeId next_in_bucket = kNoNode;
    NodeId first_child = kNoNode;
    NodeId next_sibling = kNoNode;
    NodeId previous_sibling = kNoNode;
    int fill = 0;  // tokens; 0: the node is not in use
  };
  struct PartState {
    Hold hold;  // unused by the full part
    std::uint64_t tick = 0;
    std::array<int, 2> pages{};  // per tier
    std::array<NodeId, 2> older{kNoNode, kNoNode};
    std::array<NodeId, 2> newer{kNoNode, kNoNode};
    bool storing = false;
    bool loading = false;
  };
  struct List {
    NodeId oldest = kNoNode;
    NodeId newest = kNoNode;
  };

  static constexpr std::size_t index(Tier tier) noexcept { return tier == Tier::HOST ? 1 : 0; }

  Node& at(NodeId id) noexcept { return nodes_[static_cast<std::size_t>(id)]; }
  const Node& at(NodeId id) const noexcept { return nodes_[static_cast<std::size_t>(id)]; }
  std::size_t part_index(NodeId id, int part) const noexcept {
    return static_cast<std::size_t>(id) * layout_.parts().size() + static_cast<std::size_t>(part);
  }
  PartState& part_of(NodeId id, int part) noexcept { return parts_[part_index(id, part)]; }
  const PartState& part_of(NodeId id, int part) const noexcept {
    return parts_[part_index(id, part)];
  }
  // Without a full group no chain of blocks is complete, so a reader could make nothing of one.
  bool reports(NodeId id) const noexcept { return layout_.has_full() && !is_tail(id); }
  bool is_full_part(int part) const noexcept { return layout_.part(part).kind == Kind::FULL; }
  Hold& hold(NodeId id, int part) noexcept {
    return is_full_part(part) ? at(id).hold : part_of(id, part).hold;
  }
  const Hold& hold(NodeId id, int part) const noexcept {
    return is_full_part(part) ? at(id).hold : part_of(id, part).hold;
  }
  Page& page(Tier tier, NodeId id, int entry) noexcept {
    return slots_[index(tier)][entry_index(id, entry)];
  }
  const Page& page(Tier tier, NodeId id, int entry) const noexcept {
    return slots_[index(tier)][entry_index(id, entry)];
  }
  std::size_t entry_index(NodeId id, int entry) const noexcept {
    return static_cast<std::size_t>(id) * static_cast<std::size_t>(layout_.width()) +
           static_cast<std::size_t>(entry);
  }
  List& list(Tier tier, int part) noexcept {
    return lists_[index(tier)][static_cast<std::size_t>(part)];
  }
  std::size_t bucket_of(PageKey key) const noexcept { return key & (buckets_.size() - 1); }
  std::span<TokenId> tokens_of(NodeId id) noexcept;
  std::span<const TokenId> tokens_of(NodeId id) const noexcept;
  KvBlock describe(NodeId id) const noexcept;

  bool anywhere(NodeId id, int part) const noexcept {
    const PartState& state = part_of(id, part);
    return state.pages[0] > 0 || state.pages[1] > 0;
  }
  int first_needed(int part, int blocks, int tokens) const noexcept;
  bool warm(int blocks, std::span<const int> runs) const noexcept;
  void weigh(Match& match) const noexcept;
  void match_partial(const Prefix& prefix, int max_tokens, Match& match) const noexcept;
  bool serves(NodeId source, int blocks, int tokens) const noexcept;

  bool holds(NodeId id, NodeId parent, const BlockContent& content) const noexcept;
  NodeId find(NodeId parent, const BlockContent& content) const noexcept;
  NodeId take_node(NodeId parent, Namespace ns, std::span<const TokenId> tokens) noexcept;
  NodeId insert(NodeId parent, const BlockContent& content) noexcept;
  void unindex(NodeId id) noexcept;
  void unlink(NodeId id) noexcept;
  void give(NodeId id, int part, int our_pins, std::span<Page> pages) noexcept;

  void add_hold(NodeId id, HoldKind kind) noexcept;
  void drop_hold(NodeId id, HoldKind kind) noexcept;
  void add_part_hold(NodeId id, int part, HoldKind kind) noexcept;
  void drop_part_hold(NodeId id, int part, HoldKind kind) noexcept;
  void regrip(NodeId id, int part, Grip before, Grip after) noexcept;

  void put(Tier tier, NodeId id, int entry, Page page) noexcept;
  int drop_pages(Tier tier, NodeId id, int part) noexcept;
  bool worthless(NodeId id) const noexcept;
  void prune(NodeId id) noexcept;
  void destroy(NodeId id) noexcept;
  void destroy_one(NodeId id) noexcept;
  void list_append(Tier tier, NodeId id, int part) noexcept;
  void list_remove(Tier tier, NodeId id, int part) noexcept;

  const Layout& layout_;
  KvEventLog& events_;
  int num_nodes_ = 0;
  std::uint64_t tick_ = 0;
  std::uint64_t releases_ = 0;
  std::array<int, 3> pages_{};  // device pages by grip
  // Everything is allocated once.
  std::vector<Node> nodes_;
  std::vector<PartState> parts_;
  std::array<std::vector<Page>, 2> slots_;  // per tier, width pages per node
  std::vector<TokenId> tokens_;             // block_size tokens per node
  std::vector<Page> staging_;
  std::vector<NodeId> free_nodes_;
  std::vector<NodeId> buckets_;
  std::array<std::vector<List>, 2> lists_;
};

inline bool TreePin::holds(int part, int index) const noexcept {
  return tree_->is_full_part(part) || index >= from(part);
}

}  // namespace tokenspeed
