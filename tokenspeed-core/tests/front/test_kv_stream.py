# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The SubscribeKvEvents RPC, as a router reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import grpc
import numpy as np
import pytest
from smg_grpc_proto.generated import common_pb2 as common
from tokenspeed.front.kv_log import KvEventLog
from tokenspeed.front.kv_residents import HOST, BlockEvent
from tokenspeed.front.kv_stream import BehindError, stream_kv_events

from .conftest import Front, eventually
from .kv_columns import chain, cleared, columns, removed, stored

PROMPT = list(range(100, 164))


class Router:
    """A subscriber that keeps what it is told.

    Attributes:
        cursor: number of the last batch.
        blocks: (name, tier) -> tokens.
        loads: all records.
    """

    def __init__(self, front: Front, cursor: int = 0) -> None:
        request = common.SubscribeKvEventsRequest(
            start_sequence_number=cursor, load_records_before_first_batch=True
        )
        self.call = front.stub.SubscribeKvEvents(request)
        self.cursor = cursor
        self.blocks: dict[tuple[int, int], list[int]] = {}
        self.batches: list[Any] = []
        self.loads: list[Any] = []

    async def read(self) -> Any:
        """The next message, taken in."""
        batch = await asyncio.wait_for(self.call.read(), 5)
        assert batch is not grpc.aio.EOF
        self.loads.append(batch.load)
        if batch.load.load_only:
            assert batch.sequence_number == self.cursor
            assert not batch.events
            return batch
        if not batch.HasField("snapshot") or batch.snapshot.index:
            assert batch.sequence_number == self.cursor + 1
        self.cursor = batch.sequence_number
        self.batches.append(batch)
        for event in batch.events:
            self._apply(event)
        return batch

    async def read_until(self, number: int) -> None:
        while self.cursor < number:
            await self.read()

    def _apply(self, event: Any) -> None:
        kind = event.WhichOneof("data")
        if kind == "cleared":
            self.blocks.clear()
        elif kind == "removed":
            for name in event.removed.block_hashes:
                del self.blocks[name, event.removed.tier]
        else:
            self._store(event.stored)

    def _store(self, stored: Any) -> None:
        """Each block of an event follows the one before it."""
        known = {name for name, _ in self.blocks}
        assert not stored.HasField("parent_block_hash") or stored.parent_block_hash in known
        for block in stored.blocks:
            assert len(block.token_ids) == block.block_size
            assert (block.block_hash, stored.tier) not in self.blocks
            self.blocks[block.block_hash, stored.tier] = list(block.token_ids)


def say(front: Front, *events: Iterable[BlockEvent]) -> None:
    """One message of the engine each."""
    front.engine.kv_events += [columns(part) for part in events]


async def code_of(router: Router) -> grpc.StatusCode:
    try:
        while True:
            await router.read()
    except grpc.aio.AioRpcError as error:
        return error.code()


async def test_a_new_subscriber_starts_from_what_is_resident(front: Front) -> None:
    router = Router(front)
    empty = await router.read()
    assert (empty.snapshot.index, empty.snapshot.count, empty.snapshot.blocks) == (0, 1, 0)
    assert [e.WhichOneof("data") for e in empty.events] == ["cleared"]
    start = router.cursor
    host = [event._replace(tier=HOST) for event in chain(PROMPT)]
    say(front, chain(PROMPT), host, [removed(4), removed(3)])
    await router.read_until(start + 3)
    assert len(router.blocks) == 6
    later = Router(front)
    chunk = await later.read()
    assert (later.cursor, chunk.snapshot.blocks) == (router.cursor, 6)
    assert later.blocks == router.blocks


async def test_one_event_tells_a_chain(front: Front) -> None:
    router = Router(front)
    await router.read()
    say(front, [*chain(PROMPT), *(e._replace(tier=HOST) for e in chain(PROMPT)[:2])])
    batch = await router.read()
    device, host = (event.stored for event in batch.events)
    assert [t for b in device.blocks for t in b.token_ids] == PROMPT
    assert not device.HasField("parent_block_hash")
    assert (device.tier, device.medium, device.group_idx) == (common.KV_CACHE_TIER_DEVICE, "GPU", 0)
    assert {b.block_size for b in device.blocks} == {16}
    assert (host.tier, host.medium) == (common.KV_CACHE_TIER_HOST, "CPU_PINNED")
    assert [b.cache_level for b in (*device.blocks, *host.blocks)] == [0] * 4 + [1] * 2
    assert [b.block_hash for b in host.blocks] == [b.block_hash for b in device.blocks[:2]]
    say(front, [removed(4), removed(3)])
    [event] = (await router.read()).events
    assert list(event.removed.block_hashes) == [b.block_hash for b in device.blocks[:1:-1]]
    assert event.removed.tier == common.KV_CACHE_TIER_DEVICE
    say(front, [stored(9, PROMPT[:16], parent=2), cleared()])
    grown, reset = (await router.read()).events
    assert grown.stored.parent_block_hash == device.blocks[1].block_hash
    assert reset.WhichOneof("data") == "cleared"
    assert router.blocks == {}


async def test_what_is_no_chain_is_told_apart(front: Front) -> None:
    """Two prompts, and a fork of one: each block of an event must follow the one before it."""
    router = Router(front)
    await router.read()
    fork = stored(11, PROMPT[48:], parent=1)
    say(front, [*chain(PROMPT)[:2], stored(10, PROMPT[32:48]), fork, cleared()])
    events = (await router.read()).events
    assert [len(e.stored.blocks) for e in events[:3]] == [2, 1, 1]
    assert not events[1].stored.HasField("parent_block_hash")
    assert events[2].stored.parent_block_hash == events[0].stored.blocks[0].block_hash


async def test_a_cursor_is_followed_from_where_it_stands(front: Front) -> None:
    router = Router(front)
    await router.read()
    start = router.cursor
    say(front, *([event] for event in chain(PROMPT)))
    await router.read_until(start + 4)
    router.call.cancel()
    for seen in range(4):
        again = Router(front, start + seen)
        again.blocks = dict(list(router.blocks.items())[:seen])
        await again.read_until(start + 4)
        assert [b.sequence_number - start for b in again.batches] == list(range(seen + 1, 5))
        assert again.blocks == router.blocks
    for unknown in (1, start - 1, start + 5):
        assert await code_of(Router(front, unknown)) == grpc.StatusCode.OUT_OF_RANGE


async def test_a_large_snapshot_comes_in_chunks_and_live_events_go_on(front: Front) -> None:
    tokens = np.arange(16 * 1500) % 500
    say(front, chain(tokens.tolist()))
    await eventually(lambda: len(front.client.kv_log.snapshot()[1]) == 1500)
    router = Router(front)
    first = await router.read()
    assert (first.snapshot.index, first.snapshot.count, first.snapshot.blocks) == (0, 3, 1500)
    end = first.sequence_number + 2
    say(front, [removed(1500)])
    await router.read_until(end + 1)
    assert [b.snapshot.index for b in router.batches[:3]] == [0, 1, 2]
    assert not router.batches[3].HasField("snapshot")
    assert len(router.blocks) == 1499


async def test_the_load_is_told_between_events(front: Front) -> None:
    router = Router(front)
    for _ in range(4):
        await router.read()
    assert [load.load_only for load in router.loads] == [False, True, True, True]
    assert [load.sample for load in router.loads] == [1, 2, 3, 4]
    assert router.loads[-1].max_running_requests == 8
    assert router.loads[-1].waiting_uncached_tokens == 0


async def test_many_subscribers_see_the_same(front: Front) -> None:
    routers = [Router(front) for _ in range(5)]
    for router in routers:
        await router.read()
    start = routers[0].cursor
    say(front, *([event] for event in chain(PROMPT)))
    await asyncio.gather(*(router.read_until(start + 4) for router in routers))
    assert {tuple(router.blocks) for router in routers} == {tuple(routers[0].blocks)}
    routers[0].call.cancel()
    say(front, [removed(4)])
    await routers[1].read_until(start + 5)


async def test_an_engine_that_ends_ends_the_stream(front: Front) -> None:
    router = Router(front)
    await router.read()
    front.engine.die()
    assert await code_of(router) == grpc.StatusCode.UNAVAILABLE


async def test_an_engine_that_does_not_tell(serving: Callable[..., Any]) -> None:
    """The gateway then routes by its own approximation, and does not ask again."""
    async with serving(kv_events=False) as front:
        with pytest.raises(grpc.aio.AioRpcError, match="with --no-kv-events") as error:
            await Router(front).call.read()
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
        say(front, chain(PROMPT))
        await front.client.ledger()


async def test_a_reader_that_does_not_keep_up_is_told_so_and_holds_nothing() -> None:
    log = KvEventLog(max_bytes=10_000)
    written: list[Any] = []
    hold = asyncio.Event()

    async def write(batch: Any) -> None:
        written.append(batch)
        await hold.wait()

    reader = asyncio.create_task(stream_kv_events(log, 0, write, common.EngineLoad))
    while not written:
        await asyncio.sleep(0.01)
    for i in range(200):
        log.append(columns([stored(i + 1, range(i, i + 16))]))
        await asyncio.sleep(0)
    assert len(written) == 1
    hold.set()
    with pytest.raises(BehindError):
        await asyncio.wait_for(reader, 5)
