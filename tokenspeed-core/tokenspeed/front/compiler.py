# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The process that compiles constraints, as the front sees it: started when it is needed, and anew
when it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tokenspeed.grammar.worker import (
    COMPILING,
    LENGTH,
    OPENING,
    Answer,
    Job,
    Setup,
    Unable,
    framed,
)

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.grammar import Constraint

    from tokenspeed.grammar.backends import Phase

log = logging.getLogger(__name__)

COMPILE_S = 10.0
"""Longer no constraint may take; nor may a process that is open take to begin with one."""
OPEN_S = 60.0
"""The start of the process and of a backend, once: the library is imported, tokens are read."""
TRIES = 2
"""Processes that may end while they work on a constraint: the first one may have been killed."""
LAST_WORDS_S = 1.0
"""For a process that closed its end: its status says why."""

_PHASES = {phase.encode(): phase for phase in (OPENING, COMPILING)}

T = TypeVar("T")


class GaveUp(msgspec.Struct, frozen=True):
    """The process was late or ended over a constraint, and what else went on in the machine may be
    to blame; what happened, for the client.
    """

    reason: str


class _EndedError(Exception):
    """The process is gone.

    Attributes:
        compiling: whether it worked on the constraint, rather than on what all of them need.
    """

    def __init__(self, how: str, phase: Phase | None) -> None:
        self.compiling = phase == COMPILING
        when = "while it worked on the constraint" if self.compiling else "before it worked on one"
        super().__init__(f"{how} {when}")


class Compiler:
    """The process, started when it is needed; whoever calls takes turns."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._process: asyncio.subprocess.Process | None = None
        self._phase: Phase | None = OPENING  # None: open, and without a word on its job so far

    async def compile(self, constraint: Constraint) -> Answer | GaveUp:
        """By the process, or by a new one where it ended: the constraint need not be at fault."""
        ends: list[_EndedError] = []
        while len(ends) < TRIES:
            try:
                return await self._tried(constraint)
            except _EndedError as error:
                log.warning("the grammar compiler ended: %s", error)
                ends.append(error)
        often = f"it ended {TRIES} times, at last with {ends[-1]}"
        if all(end.compiling for end in ends):
            return GaveUp(f"the compiler cannot work on it: {often}")
        return Unable(often)

    async def end(self, patience: float = 0.0) -> int | None:
        """Kill it, unless it ends by itself within so many seconds; its status."""
        process, self._process = self._process, None
        if process is None:
            return None
        if patience:
            with suppress(TimeoutError):
                return await _within(patience, process.wait)
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait()

    async def _tried(self, constraint: Constraint) -> Answer | GaveUp:
        try:
            return await self._compile(constraint)
        except TimeoutError as error:
            await self.end()
            if self._phase == COMPILING:
                return GaveUp(f"compiling it took more than {COMPILE_S:g} s")
            if self._phase == OPENING:
                return Unable(f"opening it took more than {OPEN_S:g} s")
            raise _EndedError(f"no word for {COMPILE_S:g} s", self._phase) from error
        except asyncio.CancelledError:
            await self.end()
            raise
        except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
            status = await self.end(patience=LAST_WORDS_S)
            how = str(error) if status is None else f"status {status}"  # None: it did not start
            raise _EndedError(how, self._phase) from error

    async def _compile(self, constraint: Constraint) -> Answer:
        process = await self._running()
        _write(process, msgspec.msgpack.encode(Job(constraint.kind, constraint.text)))
        while True:
            limit = OPEN_S if self._phase == OPENING else COMPILE_S
            message = await _within(limit, lambda: _read(process))
            if message not in _PHASES:
                break
            self._phase = _PHASES[message]
        self._phase = None
        answer: Answer = msgspec.msgpack.decode(message, type=Answer)
        return answer

    async def _running(self) -> asyncio.subprocess.Process:
        """The process; a new one if it ended while nobody asked: who asks now is not to blame."""
        if self._process is not None and self._process.returncode is not None:
            await self.end()
        return self._process or await self._start()

    async def _start(self) -> asyncio.subprocess.Process:
        self._phase = OPENING
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "tokenspeed.grammar.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        _write(process, msgspec.msgpack.encode(self._setup))
        return process


def _write(process: asyncio.subprocess.Process, message: bytes) -> None:
    """ConnectionError when the process has closed its end, in every event loop."""
    assert process.stdin is not None
    try:
        process.stdin.write(framed(message))
    except RuntimeError as error:  # uvloop's, where asyncio's drops what is written
        raise ConnectionResetError(str(error)) from error


async def _read(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    [length] = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    return await process.stdout.readexactly(length)


async def _within(seconds: float, work: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(seconds):
        return await work()
