# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which blocks of tokens the engine's prefix cache holds, and at which tiers.

The engine names a block by all that its KV depends on, the tenant's salt included. Who routes
requests looks for tokens alone, and takes two names of equal tokens for one block that is gone
when the first name is. So blocks get a name by content here: one that several tenants hold is
told once, when the first copy of it comes, and taken back when the last one goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tokenspeed.messages import KvEventColumns

STORED, REMOVED, CLEARED = 1, 2, 3
"""Values of tokenspeed._scheduler.KvEvent, which this process does not load."""
DEVICE, HOST = 1, 2
"""Values of tokenspeed._scheduler.Tier."""

_TIERS = 2


class BlockEvent(NamedTuple):
    """A block became resident at a tier, or left it, or (CLEARED) all did, everywhere.

    Attributes:
        block, parent: names, as signed 64-bit numbers; parent 0 for a first block.
        tokens: int32 bytes; empty unless STORED.
    """

    kind: int
    tier: int
    group: int
    block: int
    parent: int
    tokens: bytes


class Residents:
    """The blocks that were stored and not removed since. Bounded by the engine's pools."""

    def __init__(self) -> None:
        self._names: dict[int, int] = {}  # the engine's -> ours
        self._held: dict[int, int] = {}  # the engine's name -> bits of groups and tiers
        self._copies: dict[tuple[int, int, int], BlockEvent] = {}  # (ours, group, tier) -> STORED
        self._more: Counter[tuple[int, int, int]] = Counter()  # holders beside the first

    def apply(self, event: BlockEvent) -> BlockEvent | None:
        """Take in an event of the engine; the event that follows for its tokens, if any does."""
        if event.kind == STORED:
            return self._store(event)
        if event.kind == REMOVED:
            return self._remove(event)
        for everything in (self._names, self._held, self._copies, self._more):
            everything.clear()
        return event

    def stored(self) -> list[BlockEvent]:
        """A STORED for each copy of each block, older ones first."""
        return list(self._copies.values())

    def _store(self, event: BlockEvent) -> BlockEvent | None:
        kind, tier, group, block, parent, tokens = event
        held, bit = self._held.get(block, 0), _bit(group, tier)
        if held & bit or (parent and parent not in self._names):
            return None  # known already; or a block of which nobody could tell the whole prefix
        self._held[block] = held | bit
        parent = self._names.get(parent, 0)
        name = self._names.get(block)
        if name is None:
            name = self._names[block] = _name(parent, tokens)
        copy = (name, group, tier)
        if copy in self._copies:
            self._more[copy] += 1
            return None
        told = self._copies[copy] = BlockEvent(kind, tier, group, name, parent, tokens)
        return told

    def _remove(self, event: BlockEvent) -> BlockEvent | None:
        kind, tier, group, block, _, _ = event
        held, bit = self._held.get(block, 0), _bit(group, tier)
        if not held & bit:
            return None
        name = self._names[block]
        if held == bit:
            del self._held[block], self._names[block]
        else:
            self._held[block] = held & ~bit
        copy = (name, group, tier)
        if copy in self._more:
            self._more[copy] -= 1
            if not self._more[copy]:
                del self._more[copy]
            return None
        del self._copies[copy]
        return BlockEvent(kind, tier, group, name, 0, b"")


def parents_first(stored: Iterable[BlockEvent]) -> list[BlockEvent]:
    """The same events, those of a parent before those of its children."""
    copies: dict[int, list[BlockEvent]] = {}
    for event in stored:
        copies.setdefault(event.block, []).append(event)
    ordered: list[BlockEvent] = []
    for first in list(copies):
        block, chain = first, []
        while (events := copies.pop(block, None)) is not None:
            chain.append(events)
            block = events[0].parent
        for events in reversed(chain):
            ordered += events
    return ordered


def engine_events(columns: KvEventColumns) -> Iterator[BlockEvent]:
    """The rows of the engine's message."""
    starts = (4 * np.frombuffer(columns.token_start, np.int32)).tolist()
    fields = zip(
        columns.kind,
        columns.tier,
        columns.group,
        np.frombuffer(columns.block, np.int64).tolist(),
        np.frombuffer(columns.parent, np.int64).tolist(),
        (columns.tokens[start:end] for start, end in pairwise(starts)),
        strict=True,
    )
    return map(BlockEvent._make, fields)


def _bit(group: int, tier: int) -> int:
    return 1 << (group * _TIERS + tier - 1)


def _name(parent: int, tokens: bytes) -> int:
    """By content alone: the same in every process. 0 is no name."""
    digest = blake2b(parent.to_bytes(8, "little", signed=True) + tokens, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1
