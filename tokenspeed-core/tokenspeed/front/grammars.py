# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Compiled grammars of the front: made apart, once for equal constraints, and kept while there is
room.

    async with Grammars(plan.plugins, folder, vocab_size) as grammars:
        grammar = await grammars.compile(constraint)     # InvalidRequest says what is wrong

The event loop never waits: a process of its own compiles, and is ended when it takes too long.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec
from tokenspeed_sdk.contracts.grammar import Constraint

from tokenspeed.front.errors import InvalidRequest
from tokenspeed.grammar.worker import LENGTH, READY, Done, Failed, Job, Setup, framed

if TYPE_CHECKING:
    from tokenspeed.front.model_folder import ModelFolder
    from tokenspeed.grammar.backends import Compiled
    from tokenspeed.plugins.plan import PluginPlan

log = logging.getLogger(__name__)

COMPILE_S = 10.0
"""Longer no constraint may take."""
OPEN_S = 60.0
"""The start of the process and of a backend, once: the library is imported, tokens are read."""
LAST_WORDS_S = 1.0
"""For a process that closed its end: its status says why."""
MAX_ENTRIES = 512
MAX_BYTES = 256 << 20
"""What is kept: compiled grammars and the texts that they are found by."""
MAX_COMPILED = 64 << 20
"""Bytes of one compiled grammar."""

T = TypeVar("T")


class FrontGrammar(msgspec.Struct, frozen=True):
    """Attributes:
    number: names it in messages to the engine; never used again for another.
    """

    number: int
    compiled: Compiled


class Grammars:
    """Lives in one event loop. Leaving its block ends the process."""

    def __init__(self, plugins: PluginPlan, folder: ModelFolder, vocab_size: int) -> None:
        """Nothing is started before the first constraint comes."""
        self._worker = _Worker(Setup(os.getpid(), plugins, str(folder.path), vocab_size))
        self._numbers = itertools.count(1)
        self._kept: OrderedDict[Constraint, FrontGrammar | str] = OrderedDict()
        self._bytes = 0
        self._pending: dict[Constraint, asyncio.Task[FrontGrammar | str]] = {}

    async def __aenter__(self) -> Grammars:
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in self._pending.values():
            task.cancel()
        await asyncio.gather(*self._pending.values(), return_exceptions=True)
        await self._worker.end()

    async def compile(self, constraint: Constraint) -> FrontGrammar:
        """Of what is kept, or made now. InvalidRequest: it cannot be compiled, with the reason."""
        found = self._kept.get(constraint)
        if found is None:
            task = self._pending.get(constraint)
            if task is None:
                task = asyncio.create_task(self._make(constraint))
                self._pending[constraint] = task
                task.add_done_callback(lambda _: self._pending.pop(constraint, None))
            found = await asyncio.shield(task)  # others may wait for it when this request is gone
        else:
            self._kept.move_to_end(constraint)
        if isinstance(found, str):
            allowed = f"a constraint that can be honoured: {found}"
            raise InvalidRequest(constraint.kind, constraint.text, allowed)
        return found

    async def _make(self, constraint: Constraint) -> FrontGrammar | str:
        try:
            answer = await self._worker.compile(constraint)
        except _WorkerEndedError as error:
            # Not kept: the constraint need not be at fault, and may be tried again.
            log.warning("the grammar compiler ended (%s); it starts again when it is needed", error)
            return f"the compiler ended while it worked on it ({error})"
        except TimeoutError:
            answer = Failed(f"compiling it took more than {COMPILE_S:g} s")
        made: FrontGrammar | str
        if isinstance(answer, Failed):
            made = answer.reason
        elif len(answer.compiled.data) > MAX_COMPILED:
            made = f"compiled it takes more than {MAX_COMPILED >> 20} MiB"
        else:
            made = FrontGrammar(next(self._numbers), answer.compiled)
        self._keep(constraint, made)
        return made

    def _keep(self, constraint: Constraint, made: FrontGrammar | str) -> None:
        """The latest, and what was asked for before, as far as there is room; refusals too."""
        self._kept[constraint] = made
        self._bytes += _size(constraint, made)
        while len(self._kept) > MAX_ENTRIES or self._bytes > MAX_BYTES:
            self._bytes -= _size(*self._kept.popitem(last=False))


class _WorkerEndedError(Exception):
    """The process is gone."""


class _Worker:
    """The process, started when it is needed; one constraint at a time."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def compile(self, constraint: Constraint) -> Done | Failed:
        """TimeoutError, _WorkerEndedError: the process is ended, and started anew next time."""
        async with self._turn:
            try:
                return await self._compile(constraint)
            except (TimeoutError, asyncio.CancelledError):
                await self.end()
                raise
            except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
                status = await self.end(patience=LAST_WORDS_S)
                raise _WorkerEndedError(f"status {status}") from error

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

    async def _compile(self, constraint: Constraint) -> Done | Failed:
        process = self._process or await self._start()
        _write(process, msgspec.msgpack.encode(Job(constraint.kind, constraint.text)))
        message = await _within(OPEN_S, lambda: _read(process))
        while message == READY:
            message = await _within(COMPILE_S, lambda: _read(process))
        answer: Done | Failed = msgspec.msgpack.decode(message, type=Done | Failed)
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "tokenspeed.grammar.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        _write(process, msgspec.msgpack.encode(self._setup))
        return process


def _write(process: asyncio.subprocess.Process, message: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(framed(message))


async def _read(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    [length] = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    return await process.stdout.readexactly(length)


async def _within(seconds: float, work: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(seconds):
        return await work()


def _size(constraint: Constraint, made: FrontGrammar | str) -> int:
    data = len(made) if isinstance(made, str) else len(made.compiled.data)
    return len(constraint.text) + data
