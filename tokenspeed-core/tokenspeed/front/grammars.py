# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Compiled grammars of the front: made apart, once for equal constraints of a namespace, and kept
while there is room.

    async with Grammars(plan.plugins, folder, vocab_size) as grammars:
        grammar = await grammars.compile(constraint)     # InvalidRequest says what is wrong

The event loop never waits: a process of its own compiles, and is ended when it takes too long. What
nobody waits for any more is not begun.
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
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec
from tokenspeed_sdk.contracts.grammar import Constraint

from tokenspeed.front.errors import CompilerBusy, InvalidRequest
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
MAX_WAITING = 64
"""Constraints that are compiled or wait for it, in a server."""
MAX_ENTRIES = 512
MAX_BYTES = 256 << 20
"""What is kept: compiled grammars and the texts that they are found by."""
MAX_COMPILED = 64 << 20
"""Bytes of one compiled grammar."""

T = TypeVar("T")

Key: TypeAlias = tuple[int, Constraint]
"""With its namespace: how long a constraint takes tells nobody what another tenant asks for."""


class FrontGrammar(msgspec.Struct, frozen=True):
    """Attributes:
    number: names it in messages to the engine; never used again for another.
    """

    number: int
    compiled: Compiled


class Grammars:
    """Lives in one event loop. Leaving its block ends the process."""

    def __init__(
        self,
        plugins: PluginPlan,
        folder: ModelFolder,
        vocab_size: int,
        *,
        max_waiting: int | None = MAX_WAITING,
    ) -> None:
        """Nothing is started before the first constraint comes.

        Args:
            max_waiting: constraints that are compiled or wait for it; None: who calls has a bound.
        """
        self._worker = _Worker(Setup(os.getpid(), plugins, str(folder.path), vocab_size))
        self._turn = asyncio.Lock()
        self._max_waiting = max_waiting
        self._numbers = itertools.count(1)
        self._kept: OrderedDict[Key, FrontGrammar | str] = OrderedDict()
        self._bytes = 0
        self._pending: dict[Key, _Pending] = {}

    async def __aenter__(self) -> Grammars:
        return self

    async def __aexit__(self, *exception: object) -> None:
        tasks = [pending.task for pending in self._pending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._worker.end()

    async def compile(self, constraint: Constraint, namespace: int = 0) -> FrontGrammar:
        """Of what is kept, or made now.

        Args:
            namespace: only requests of the same one share what is compiled.

        Raises:
            InvalidRequest: it cannot be compiled, with the reason.
            CompilerBusy: too many others wait.
        """
        key = (namespace, constraint)
        found = self._kept.get(key)
        if found is None:
            found = await self._awaited(key)
        else:
            self._kept.move_to_end(key)
        if isinstance(found, str):
            allowed = f"a constraint that can be honoured: {found}"
            raise InvalidRequest(constraint.kind, constraint.text, allowed)
        return found

    async def _awaited(self, key: Key) -> FrontGrammar | str:
        """What comes of it. Dropped, if nobody waits any more before it is begun."""
        pending = self._pending.get(key) or self._enqueue(key)
        pending.waiters += 1
        try:
            return await asyncio.shield(pending.task)  # others may wait when this request is gone
        finally:
            pending.waiters -= 1
            if not pending.waiters and not pending.begun:
                self._forget(key, pending)
                pending.task.cancel()

    def _enqueue(self, key: Key) -> _Pending:
        if self._max_waiting is not None and len(self._pending) >= self._max_waiting:
            raise CompilerBusy(len(self._pending))
        pending = _Pending()
        pending.task = asyncio.create_task(self._make(key, pending))
        pending.task.add_done_callback(lambda _: self._forget(key, pending))
        self._pending[key] = pending
        return pending

    def _forget(self, key: Key, pending: _Pending) -> None:
        """Another request may wait for an equal constraint anew by now."""
        if self._pending.get(key) is pending:
            del self._pending[key]

    async def _make(self, key: Key, pending: _Pending) -> FrontGrammar | str:
        async with self._turn:
            pending.begun = True
            return await self._compiled(key)

    async def _compiled(self, key: Key) -> FrontGrammar | str:
        try:
            answer = await self._worker.compile(key[1])
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
        self._keep(key, made)
        return made

    def _keep(self, key: Key, made: FrontGrammar | str) -> None:
        """The latest, and what was asked for before, as far as there is room; refusals too."""
        self._kept[key] = made
        self._bytes += _size(key, made)
        while len(self._kept) > MAX_ENTRIES or self._bytes > MAX_BYTES:
            self._bytes -= _size(*self._kept.popitem(last=False))


class _Pending:
    """A constraint that is compiled, or waits for it.

    Attributes:
        waiters: requests that want it.
        begun: whether the compiler has it.
    """

    task: asyncio.Task[FrontGrammar | str]

    def __init__(self) -> None:
        self.waiters = 0
        self.begun = False


class _WorkerEndedError(Exception):
    """The process is gone."""


class _Worker:
    """The process, started when it is needed; whoever calls takes turns."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._process: asyncio.subprocess.Process | None = None

    async def compile(self, constraint: Constraint) -> Done | Failed:
        """TimeoutError, _WorkerEndedError: the process is ended, and started anew next time."""
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
        process = await self._running()
        _write(process, msgspec.msgpack.encode(Job(constraint.kind, constraint.text)))
        message = await _within(OPEN_S, lambda: _read(process))
        while message == READY:
            message = await _within(COMPILE_S, lambda: _read(process))
        answer: Done | Failed = msgspec.msgpack.decode(message, type=Done | Failed)
        return answer

    async def _running(self) -> asyncio.subprocess.Process:
        """The process; a new one if it ended while nobody asked: who asks now is not to blame."""
        if self._process is not None and self._process.returncode is not None:
            await self.end()
        return self._process or await self._start()

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


def _size(key: Key, made: FrontGrammar | str) -> int:
    data = len(made) if isinstance(made, str) else len(made.compiled.data)
    return len(key[1].text) + data
