# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Events of a prefix cache, written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from tokenspeed.front.kv_residents import CLEARED, DEVICE, REMOVED, STORED, BlockEvent
from tokenspeed.messages import KvEventColumns

BLOCK = 16


def stored(
    block: int,
    tokens: Sequence[int],
    *,
    parent: int = 0,
    tier: int = DEVICE,
    group: int = 0,
) -> BlockEvent:
    return BlockEvent(STORED, tier, group, block, parent, np.asarray(tokens, np.int32).tobytes())


def removed(block: int, *, tier: int = DEVICE, group: int = 0) -> BlockEvent:
    return BlockEvent(REMOVED, tier, group, block, 0, b"")


def cleared() -> BlockEvent:
    return BlockEvent(CLEARED, 0, 0, 0, 0, b"")


def chain(tokens: Sequence[int], *, first: int = 1, tier: int = DEVICE) -> list[BlockEvent]:
    """The full blocks of a prompt, named first, first + 1, ..."""
    return [
        stored(
            first + i,
            tokens[i * BLOCK : (i + 1) * BLOCK],
            parent=first + i - 1 if i else 0,
            tier=tier,
        )
        for i in range(len(tokens) // BLOCK)
    ]


def columns(events: Iterable[BlockEvent]) -> KvEventColumns:
    """As the engine sends them."""
    rows = list(events)
    starts = np.cumsum([0] + [len(row.tokens) // 4 for row in rows])
    return KvEventColumns(
        kind=bytes(row.kind for row in rows),
        tier=bytes(row.tier for row in rows),
        group=bytes(row.group for row in rows),
        block=np.array([row.block for row in rows], np.int64).tobytes(),
        parent=np.array([row.parent for row in rows], np.int64).tobytes(),
        namespace=np.zeros(len(rows), np.uint64).tobytes(),
        token_start=starts.astype(np.int32).tobytes(),
        tokens=b"".join(row.tokens for row in rows),
    )
