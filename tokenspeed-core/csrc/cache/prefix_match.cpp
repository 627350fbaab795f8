// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include <algorithm>

#include "cache/prefix_tree.h"

// What of a prompt is resident.
namespace tokenspeed {

// The first node that a hit of `tokens` tokens, `blocks` of them whole blocks, needs of a part.
int PrefixTree::first_needed(int part, int blocks, int tokens) const noexcept {
  const Part& p = layout_.part(part);
  if (p.kind == Kind::STATE) {
    return std::max(0, blocks - 1);
  }
  return std::min(blocks, Layout::first_read(p.kind, p.window, tokens) / layout_.block_size());
}

// runs[p]: how many nodes up to here have part p without a gap.
bool PrefixTree::warm(int blocks, std::span<const int> runs) const noexcept {
  for (int p = 0; p < layout_.num_parts(); ++p) {
    const int first = first_needed(p, blocks, blocks * layout_.block_size());
    if (runs[static_cast<std::size_t>(p)] < blocks - first) {
      return false;
    }
  }
  return true;
}

void PrefixTree::match(const Prefix& prefix, int max_tokens, Match& match) const {
  match.clear();
  std::array<int, kMaxGroups> runs{};
  const int block_size = layout_.block_size();
  const int limit = std::min(max_tokens / block_size, static_cast<int>(prefix.keys.size()));
  NodeId tip = kRootNode;
  for (int depth = 0; depth < limit; ++depth) {
    tip = find(tip, prefix.block(depth, block_size));
    if (tip == kNoNode) {
      break;
    }
    match.path.push_back(tip);
    for (int p = 0; p < layout_.num_parts(); ++p) {
      int& run = runs[static_cast<std::size_t>(p)];
      run = anywhere(tip, p) ? run + 1 : 0;
    }
    if (warm(depth + 1, runs)) {
      match.blocks = depth + 1;
    }
  }
  weigh(match);
  match_partial(prefix, max_tokens, match);
}

void PrefixTree::weigh(Match& match) const noexcept {
  int first_load = match.blocks;
  for (int p = 0; p < layout_.num_parts(); ++p) {
    const int first = first_needed(p, match.blocks, match.blocks * layout_.block_size());
    for (int i = first; i < match.blocks; ++i) {
      const NodeId id = match.path[static_cast<std::size_t>(i)];
      const PartState& part = part_of(id, p);
      if (part.pages[0] == 0) {
        match.load_pages += part.pages[1];
        match.loading |= part.loading;
        first_load = std::min(first_load, i);
      } else if (hold(id, p).pins == 0) {
        match.reclaimable += part.pages[0];
      }
    }
  }
  match.load_blocks = match.blocks - first_load;
}

// A recurrent state exists at block ends only, so with one there is no hit inside a block.
void PrefixTree::match_partial(const Prefix& prefix, int max_tokens, Match& match) const noexcept {
  const int start = match.blocks * layout_.block_size();
  if (layout_.has_state() || max_tokens <= start) {
    return;
  }
  const auto wanted = prefix.tokens.subspan(static_cast<std::size_t>(start),
                                            static_cast<std::size_t>(max_tokens - start));
  const NodeId tip =
      match.blocks == 0 ? kRootNode : match.path[static_cast<std::size_t>(match.blocks) - 1];
  int looked_at = 0;
  for (NodeId id = at(tip).first_child; id != kNoNode && looked_at < kMaxSiblings;
       id = at(id).next_sibling, ++looked_at) {
    if (at(id).ns != prefix.ns) {
      continue;
    }
    const auto held = tokens_of(id).first(static_cast<std::size_t>(at(id).fill));
    const int tokens = common_prefix(held, wanted);
    // Of two that match equally far, one without further tokens may be adopted.
    const bool adoptable = tokens == match.partial && at(id).fill == tokens;
    const bool better = tokens > match.partial || (tokens > 0 && adoptable);
    if (better && serves(id, match.blocks, tokens)) {
      match.partial = tokens;
      match.source = id;
    }
  }
  if (match.source != kNoNode) {
    for (int p = 0; p < layout_.num_parts(); ++p) {
      match.reclaimable += hold(match.source, p).pins == 0 ? part_of(match.source, p).pages[0] : 0;
    }
  }
}

// Does the device have all pages of the block `source` that a hit of its first tokens reads?
bool PrefixTree::serves(NodeId source, int blocks, int tokens) const noexcept {
  const int start = blocks * layout_.block_size();
  for (const Group& group : layout_.groups()) {
    const int read = Layout::first_read(group.kind, group.window, start + tokens);
    for (int j = std::max(0, read - start) / group.page_size; j * group.page_size < tokens; ++j) {
      if (!page(Tier::DEVICE, source, group.first_entry + j)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace tokenspeed
