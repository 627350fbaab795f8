# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""All lines of an input, some at a time, to results in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from tokenspeed.batch.lines import Line
from tokenspeed.batch.result import Result
from tokenspeed.batch.results import Results

AHEAD = 4
"""Lines in memory for each one that may be asked at once: answers wait for slower ones before them,
and the device should not."""

AHEAD_BYTES = 256 << 20
"""Of these lines together; one is always read."""

Answer = Callable[[Line], Awaitable[Result]]


@dataclass
class Progress:
    """What is done, those of earlier runs included.

    Attributes:
        bytes: of the input that are answered.
        tokens: of answers of this run.
    """

    answered: int = 0
    failed: int = 0
    bytes: int = 0
    tokens: int = 0


async def run(
    lines: Iterable[Line],
    answer: Answer,
    results: Results,
    concurrency: int,
    progress: Progress,
) -> None:
    """Answer the lines behind those that are done.

    Args:
        answer: called for up to ``concurrency`` lines at once.
        progress: kept up to date.

    Raises:
        BatchError: as ``answer``; what was answered before in order is written.
    """
    slots = asyncio.Semaphore(concurrency)
    window: deque[tuple[Line, asyncio.Task[Result]]] = deque()

    async def one(line: Line) -> Result:
        async with slots:
            return await answer(line)

    async def finish_first() -> None:
        line, task = window[0]
        result = await task
        window.popleft()
        results.write(result)
        _count(progress, line, result)

    ahead = 0
    try:
        for line in lines:
            if line.number <= results.done.line:
                continue
            window.append((line, asyncio.create_task(one(line))))
            ahead += _size(line)
            while window and (
                len(window) >= AHEAD * concurrency or ahead > AHEAD_BYTES or window[0][1].done()
            ):
                ahead -= _size(window[0][0])
                await finish_first()
        while window:
            await finish_first()
    finally:
        await _abandon(task for _, task in window)


def _size(line: Line) -> int:
    return len(line.content or b"")


async def _abandon(tasks: Iterable[asyncio.Task[Result]]) -> None:
    left = [*tasks]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _count(progress: Progress, line: Line, result: Result) -> None:
    progress.bytes = line.end
    if not result.good:
        progress.failed += 1
        return
    progress.answered += 1
    assert result.response is not None
    body = result.response.body
    usage = body.get("usage") if isinstance(body, dict) else None
    if isinstance(usage, dict) and isinstance(tokens := usage.get("completion_tokens"), int):
        progress.tokens += tokens
