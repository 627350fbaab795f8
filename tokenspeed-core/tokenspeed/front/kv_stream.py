# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The log of the prefix cache as the gateway's routing reads it: SubscribeKvEvents.

A subscriber without a cursor gets what is resident, in chunks, and then every batch; one with a
cursor gets the batches after it. In between it is told the engine's load, so that it need not ask.
Nothing is kept for a subscriber but its cursor: one that reads too slowly is told so, and starts
again from what is resident then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import numpy as np
from smg_grpc_proto.generated import common_pb2 as common

from tokenspeed.front.kv_log import CursorLostError, KvEventLog
from tokenspeed.front.kv_residents import (
    CLEARED,
    DEVICE,
    HOST,
    STORED,
    BlockEvent,
    parents_first,
)

HEARTBEAT_S = 0.25
"""A load record follows so long after the last message at the latest."""
CHUNK_BLOCKS = 512

_TIERS = {  # ours -> (theirs, cache_level, medium)
    DEVICE: (common.KV_CACHE_TIER_DEVICE, 0, "GPU"),
    HOST: (common.KV_CACHE_TIER_HOST, 1, "CPU_PINNED"),
}

Write = Callable[[Any], Awaitable[None]]
Record = Callable[[], Any]
"""Makes an EngineLoad of now."""


class BehindError(Exception):
    """The subscriber reads more slowly than the cache changes."""


async def stream_kv_events(log: KvEventLog, cursor: int, write: Write, record: Record) -> None:
    """Write KvEventBatch messages for ever; ``cursor`` 0 for a subscriber that knows nothing.

    CursorLostError: what follows the cursor is not kept. BehindError: no longer, for this reader.
    """
    if cursor:
        log.after(cursor)
    else:
        cursor = await _send_snapshot(log, write, record)
    while True:
        news = log.news
        try:
            batch = log.after(cursor)
        except CursorLostError as error:
            raise BehindError from error
        if batch is not None:
            cursor = batch.number
            events = list(encoded(batch.events, event_id=batch.number))
            await write(_batch(batch.number, batch.time, record(), events=events))
            continue
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await news.wait()
        except TimeoutError:
            load = record()
            load.load_only = True
            await write(_batch(cursor, time.time(), load))


async def _send_snapshot(log: KvEventLog, write: Write, record: Record) -> int:
    """Send what is resident; returns the cursor from which to go on."""
    number, stored = log.snapshot()
    stored = await asyncio.to_thread(parents_first, stored)
    count = max(1, -(-len(stored) // CHUNK_BLOCKS))
    for index in range(count):
        part = stored[index * CHUNK_BLOCKS : (index + 1) * CHUNK_BLOCKS]
        events = list(encoded(part, event_id=0))
        if index == 0:
            events.insert(0, common.KvCacheEvent(cleared=common.KvCacheCleared()))
        chunk = common.KvSnapshotChunk(index=index, count=count, blocks=len(stored))
        sequence = number - count + 1 + index
        await write(_batch(sequence, time.time(), record(), events=events, snapshot=chunk))
    return number


def _batch(number: int, at: float, load: Any, **fields: Any) -> Any:
    return common.KvEventBatch(sequence_number=number, timestamp=at, dp_rank=0, load=load, **fields)


def encoded(events: Sequence[BlockEvent], event_id: int) -> Iterator[Any]:
    """KvCacheEvents: neighbours that differ in the block alone share one, a chain is one."""
    for run in _runs(events):
        first = run[0]
        if first.kind == CLEARED:
            yield common.KvCacheEvent(event_id=event_id, cleared=common.KvCacheCleared())
        elif first.kind == STORED:
            yield common.KvCacheEvent(event_id=event_id, stored=_stored(run))
        else:
            yield common.KvCacheEvent(event_id=event_id, removed=_removed(run))


def _runs(events: Sequence[BlockEvent]) -> Iterator[list[BlockEvent]]:
    run: list[BlockEvent] = []
    for event in events:
        if run and not _follows(run[-1], event):
            yield run
            run = []
        run.append(event)
    if run:
        yield run


def _follows(last: BlockEvent, event: BlockEvent) -> bool:
    return (
        (event.kind, event.tier, event.group) == (last.kind, last.tier, last.group)
        and event.kind != CLEARED
        and (event.kind != STORED or event.parent == last.block)
    )


def _stored(run: list[BlockEvent]) -> Any:
    first = run[0]
    tier, level, medium = _TIERS[first.tier]
    stored = common.KvBlocksStored(
        tier=tier, medium=medium, group_idx=first.group, locality=common.KV_CACHE_LOCALITY_LOCAL
    )
    if first.parent:
        stored.parent_block_hash = first.parent
    for event in run:
        tokens = np.frombuffer(event.tokens, np.int32).tolist()
        stored.blocks.add(
            block_hash=event.block, token_ids=tokens, block_size=len(tokens), cache_level=level
        )
    return stored


def _removed(run: list[BlockEvent]) -> Any:
    tier, level, medium = _TIERS[run[0].tier]
    return common.KvBlocksRemoved(
        block_hashes=[event.block for event in run],
        cache_level=level,
        tier=tier,
        medium=medium,
        group_idx=run[0].group,
        locality=common.KV_CACHE_LOCALITY_LOCAL,
    )
