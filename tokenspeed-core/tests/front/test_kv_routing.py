# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Two engines that are played, one gateway that routes by what their caches hold.

What the log tells rests on how the gateway reads it: that is what is tested here.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from tokenizers import Tokenizer
from tokenspeed.front.kv_residents import HOST, BlockEvent

from .conftest import Front, run_front
from .fake_engine import FakeEngine
from .gateway import Gateway, run_gateway
from .kv_columns import chain, cleared, columns, removed

BATCHES = "smg_kv_event_batches_total"
BRANCHES = "smg_cache_aware_policy_branch_total"


class Fleet:
    """Two fronts behind one gateway."""

    def __init__(self, fronts: list[Front], gateway: Gateway, http: aiohttp.ClientSession) -> None:
        self.fronts = fronts
        self._gateway = gateway
        self._http = http

    async def say(self, front: int, events: Iterable[BlockEvent]) -> None:
        """An engine's cache changes; returns once the gateway knows."""
        applied = await self._gateway.metric(BATCHES, "applied")
        self.fronts[front].engine.kv_events.append(columns(events))
        async with asyncio.timeout(5):
            while await self._gateway.metric(BATCHES, "applied") == applied:
                await asyncio.sleep(0.005)

    async def routed(self, prompt: str) -> list[int] | None:
        """How many of 4 equal requests came to each front; None when nothing said where to."""
        hits = await self._gateway.metric(BRANCHES, "event_hit")
        before = [len(front.engine.submits) for front in self.fronts]
        for _ in range(4):
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
            async with self._http.post(f"{self._gateway.url}/v1/completions", json=body) as answer:
                assert answer.status == 200
        after = [len(front.engine.submits) for front in self.fronts]
        hits = await self._gateway.metric(BRANCHES, "event_hit") - hits
        assert hits in (0, 4)
        if not hits:
            return None
        return [end - start for start, end in zip(before, after, strict=True)]


@pytest.fixture
async def fleet(model_folder: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        fronts = []
        for name in ("a", "b"):
            engine = FakeEngine(f"ipc://{folder}/{name}")
            engine.start()
            stack.callback(engine.die)
            front = run_front(f"ipc://{folder}/{name}", engine, model_folder)
            fronts.append(await stack.enter_async_context(front))
        ports = [front.port for front in fronts]
        gateway = await stack.enter_async_context(run_gateway(ports, "cache_aware"))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        await _until_subscribed(gateway)
        yield Fleet(fronts, gateway, http)


async def _until_subscribed(gateway: Gateway) -> None:
    async with asyncio.timeout(10):
        while await gateway.metric(BATCHES, "snapshot") < 2:
            await asyncio.sleep(0.005)


async def test_requests_go_where_their_prefix_is(fleet: Fleet, tokenizer: Tokenizer) -> None:
    """One gateway for all: starting it takes longer than all of these."""
    luck = random.Random(3)
    numbers = iter(range(1, 1_000_000, 100))

    def prompt() -> tuple[str, list[int]]:
        text = "".join(luck.choice("cdfgijkmnpqrstuvxyz") for _ in range(100))
        return text, tokenizer.encode(text).ids

    def blocks(ids: list[int]) -> list[BlockEvent]:
        return chain(ids, first=next(numbers))

    def leave(held: list[BlockEvent], tier: int = 1) -> list[BlockEvent]:
        return [removed(event.block, tier=tier) for event in reversed(held)]

    for front in (0, 1):  # an index with nothing in it is not asked
        await fleet.say(front, blocks(prompt()[1]))
    for front, only in ((0, [4, 0]), (1, [0, 4])):
        text, ids = prompt()
        held = blocks(ids)
        await fleet.say(front, held)
        assert await fleet.routed(text) == only, "stored"
        await fleet.say(front, [event._replace(tier=HOST) for event in held])
        await fleet.say(front, leave(held))
        assert await fleet.routed(text) == only, "the host tier still has it"
        await fleet.say(front, leave(held, HOST))
        assert await fleet.routed(text) is None, "gone"

        acme, other = blocks(ids), blocks(ids)  # equal tokens, two salts
        await fleet.say(front, [*acme, *other, *leave(acme), *blocks(prompt()[1])])
        assert await fleet.routed(text) == only, "another tenant still has it"

    moved, ids = prompt()
    await fleet.say(0, blocks(ids))
    assert await fleet.routed(moved) == [4, 0]
    await fleet.say(0, [cleared()])
    await fleet.say(1, blocks(ids))
    assert await fleet.routed(moved) == [0, 4], "after a reset"
