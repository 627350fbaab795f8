# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Order, limits and ends of a run, with answers that take any time."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Iterator
from typing import cast

import pytest
from tokenspeed.batch import run as module
from tokenspeed.batch.errors import BatchError
from tokenspeed.batch.lines import Line
from tokenspeed.batch.result import Response, Result, name_of
from tokenspeed.batch.results import Results
from tokenspeed.batch.resume import Done
from tokenspeed.batch.run import AHEAD, Progress, run


class Kept:
    """Results in memory."""

    def __init__(self, done: int = 0) -> None:
        self.done = Done(line=done)
        self.ids: list[str] = []

    def write(self, result: Result) -> None:
        self.ids.append(result.id)


def lines(count: int, size: int = 10) -> Iterator[Line]:
    return (Line(n, b"x" * size, n * (size + 1)) for n in range(1, count + 1))


def good(line: Line) -> Result:
    body = {"usage": {"completion_tokens": 2}}
    return Result(name_of(line), "c", response=Response(200, None, body))


async def test_results_are_in_order_whatever_takes_long() -> None:
    kept, progress, asked, most = Kept(), Progress(), 0, 0

    async def answer(line: Line) -> Result:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await asyncio.sleep(random.random() * 0.01)
        asked -= 1
        return good(line) if line.number % 5 else Result(name_of(line), None)

    await run(lines(200), answer, cast(Results, kept), 7, progress)
    assert kept.ids == [f"line-{n}" for n in range(1, 201)]
    assert most == 7
    assert (progress.answered, progress.failed, progress.tokens) == (160, 40, 320)
    assert progress.bytes == 200 * 11


async def test_lines_that_are_done_are_not_asked_again() -> None:
    kept, asked = Kept(done=3), []

    async def answer(line: Line) -> Result:
        asked.append(line.number)
        return good(line)

    await run(lines(5), answer, cast(Results, kept), 2, Progress())
    assert asked == [4, 5]


@pytest.mark.parametrize(
    ("concurrency", "most_bytes", "ahead"), [(3, 1 << 30, 3 * AHEAD), (100, 50, 6)]
)
async def test_a_slow_line_does_not_let_the_others_pile_up(
    concurrency: int, most_bytes: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", most_bytes)
    kept, read, slow = Kept(), 0, asyncio.Event()

    def counted() -> Iterator[Line]:
        nonlocal read
        for line in lines(10_000):
            read += 1
            yield line

    async def answer(line: Line) -> Result:
        if line.number == 1:
            await slow.wait()
        return good(line)

    task = asyncio.create_task(run(counted(), answer, cast(Results, kept), concurrency, Progress()))
    for _ in range(100):
        await asyncio.sleep(0)
    assert kept.ids == []
    assert read == ahead  # the sixth line of 10 bytes is beyond 50
    slow.set()
    await task
    assert len(kept.ids) == 10_000


async def test_memory_does_not_grow_with_the_input() -> None:
    class Nowhere(Kept):
        def write(self, result: Result) -> None: ...

    async def answer(line: Line) -> Result:
        await asyncio.sleep(0)
        return good(line)

    tracemalloc.start()
    await run(lines(4000, size=10_000), answer, cast(Results, Nowhere()), 8, Progress())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000  # of 40 MB


async def test_when_the_server_is_gone_what_came_before_is_written() -> None:
    kept, left = Kept(), []

    async def answer(line: Line) -> Result:
        if line.number == 4:
            raise BatchError("gone")
        if line.number > 4:
            try:
                await asyncio.sleep(60)
            finally:
                left.append(line.number)
        return good(line)

    with pytest.raises(BatchError, match="gone"):
        await run(lines(100), answer, cast(Results, kept), 6, Progress())
    assert kept.ids == ["line-1", "line-2", "line-3"]
    assert left
    assert len(asyncio.all_tasks()) == 1
