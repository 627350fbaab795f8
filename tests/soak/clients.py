# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Clients that send what they draw, and the table of what came back."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field

import httpx
from kinds import Request, draw

PATIENCE_S = 60.0
"""Who waits longer is stuck: no request here is more than seconds of work."""
BUSY = 429


class SoakError(Exception):
    """What is wrong with the server, by what seed."""


@dataclass
class Table:
    """What was sent, by kind, and what came back."""

    sent: Counter[str] = field(default_factory=Counter)
    came: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    longest: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, kind: str, what: str, seconds: float) -> None:
        self.sent[kind] += 1
        self.came[kind][what] += 1
        self.longest[kind] = max(self.longest[kind], seconds)

    def __str__(self) -> str:
        """One line a kind, one column an outcome."""
        outcomes = sorted({what for came in self.came.values() for what in came})
        lines = [["", "sent", *outcomes, "longest s"]]
        for kind in sorted(self.sent):
            counts = [str(self.came[kind][what] or "") for what in outcomes]
            lines.append([kind, str(self.sent[kind]), *counts, f"{self.longest[kind]:.1f}"])
        sums = [str(sum(came[what] for came in self.came.values())) for what in outcomes]
        longest = max(self.longest.values(), default=0.0)
        lines.append(["all", str(self.sent.total()), *sums, f"{longest:.1f}"])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )


async def traffic(url: str, seed: str, clients: int, seconds: float, table: Table) -> None:
    """Clients that send one request after the other for so long; all are answered at the end.

    Raises:
        SoakError: a request that was answered wrongly or not at all, with its seed.
    """
    end = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as http:

        async def client(number: int) -> None:
            sent = 0
            while time.monotonic() < end:
                await _one(http, f"{seed}.{number}.{sent}", table)
                sent += 1

        await _together(client(number) for number in range(clients))


async def _one(http: httpx.AsyncClient, seed: str, table: Table) -> None:
    """The request of a seed, and its copies."""
    kind, request = draw(seed)

    async def sent() -> None:
        start = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S):
                what = await _send(http, request)
        except (TimeoutError, httpx.HTTPError, SoakError, ValueError, KeyError) as error:
            reason = str(error) or type(error).__name__
            said = f"{kind} of seed {seed}, after {time.monotonic() - start:.1f} s: {reason}"
            raise SoakError(f"{said}\n  it sent {request.content[:2000]!r}") from error
        table.add(kind, what, time.monotonic() - start)

    await _together(sent() for _ in range(request.copies))


async def _together(work: Iterable[Coroutine[None, None, None]]) -> None:
    """All of it; what fails first ends the others, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _send(http: httpx.AsyncClient, request: Request) -> str:
    """How a request ended, for the table."""
    if request.streams:
        return await _stream(http, request)
    headers = {"Content-Type": "application/json"}
    try:
        answer = await http.post(
            request.path,
            content=request.content,
            headers=headers,
            timeout=request.give_up_s or PATIENCE_S,
        )
    except httpx.TimeoutException:
        if request.give_up_s is None:
            raise
        return "left"
    if answer.status_code == 200 and 200 in request.statuses:
        _require(request.check(answer.json()), f"a wrong answer: {answer.text}")
    return _status(request, answer.status_code, answer.text)


async def _stream(http: httpx.AsyncClient, request: Request) -> str:
    headers = {"Content-Type": "application/json"}
    pieces, ends, done = 0, 0, False
    async with http.stream(
        "POST", request.path, content=request.content, headers=headers
    ) as answer:
        if answer.status_code != 200:
            return _status(request, answer.status_code, (await answer.aread()).decode())
        async for line in answer.aiter_lines():
            if not line:
                continue
            data = line.removeprefix("data: ")
            done = data == "[DONE]"
            if done:
                continue
            event = json.loads(data)
            _require("error" not in event, f"an error in a stream: {data}")
            pieces += 1
            ends += sum(choice["finish_reason"] is not None for choice in event["choices"])
            if request.leave_after is not None and pieces >= request.leave_after:
                return "left"
    _require(done and ends == 1, f"a stream of {pieces} pieces with {ends} ends, done: {done}")
    return _status(request, 200, "")


def _status(request: Request, status: int, text: str) -> str:
    _require(status in (*request.statuses, BUSY), f"status {status}: {text}")
    _require("Traceback" not in text, f"a traceback: {text}")
    return str(status)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SoakError(otherwise)
