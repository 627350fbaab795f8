# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Compiled grammars of the front: made apart, once for equal constraints of a namespace, and kept
while there is room.

    async with Grammars(plan.plugins, folder, vocab_size) as grammars:
        grammar = await grammars.compile(constraint)     # UnhonouredConstraint says why

The event loop never waits: a process of its own compiles, and is ended when it takes too long. What
nobody waits for any more is not begun.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from tokenspeed_sdk.contracts.grammar import Constraint

from tokenspeed.front.compiler import Compiler, GaveUp
from tokenspeed.front.errors import CompilerBusy, CompilerFailed, UnhonouredConstraint
from tokenspeed.grammar.worker import Failed, Setup, Unable

if TYPE_CHECKING:
    from tokenspeed.front.model_folder import ModelFolder
    from tokenspeed.grammar.backends import Compiled
    from tokenspeed.plugins.plan import PluginPlan

MAX_WAITING = 64
"""Constraints that are compiled or wait for it, in a server."""
MAX_ENTRIES = 512
MAX_BYTES = 256 << 20
"""What is kept: compiled grammars and the texts that they are found by."""
MAX_COMPILED = 64 << 20
"""Bytes of one compiled grammar."""
REFUSED_S = 60.0
"""A constraint that the compiler gave up is refused for so long. Not for ever, since a machine that
was short of memory or time may have been to blame; but one that does end or delay it would take the
turn of all others at each try.
"""

Key: TypeAlias = tuple[int, Constraint]
"""With its namespace: how long a constraint takes tells nobody what another tenant asks for."""

Made: TypeAlias = "FrontGrammar | Refusal"
"""What comes of a constraint."""


class FrontGrammar(msgspec.Struct, frozen=True):
    """Attributes:
    number: names it in messages to the engine; never used again for another.
    """

    number: int
    compiled: Compiled


class Refusal(msgspec.Struct, frozen=True):
    """Why a constraint cannot be a grammar.

    Attributes:
        since: since when (``time.monotonic()``), if it is for REFUSED_S only.
    """

    reason: str
    since: float | None = None

    @property
    def left_s(self) -> float:
        """How long it still holds."""
        if self.since is None:
            return math.inf
        return self.since + REFUSED_S - time.monotonic()

    def __str__(self) -> str:
        if self.since is None:
            return self.reason
        wait_s = max(1, math.ceil(self.left_s))
        return f"{self.reason}; simplify it, or send it again in {wait_s} s"


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
        self._compiler = Compiler(Setup(os.getpid(), plugins, str(folder.path), vocab_size))
        self._turn = asyncio.Lock()
        self._max_waiting = max_waiting
        self._numbers = itertools.count(1)
        self._kept: OrderedDict[Key, Made] = OrderedDict()
        self._bytes = 0
        self._pending: dict[Key, _Pending] = {}

    async def __aenter__(self) -> Grammars:
        return self

    async def __aexit__(self, *exception: object) -> None:
        tasks = [pending.task for pending in self._pending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._compiler.end()

    async def compile(self, constraint: Constraint, namespace: int = 0) -> FrontGrammar:
        """Of what is kept, or made now.

        Args:
            namespace: only requests of the same one share what is compiled.

        Raises:
            UnhonouredConstraint: it cannot be compiled, with the reason.
            CompilerBusy: too many others wait.
            CompilerFailed: the compiler cannot work.
        """
        key = (namespace, constraint)
        found: Made | CompilerFailed | None = self._found(key)
        if found is None:
            found = await self._awaited(key)
        if isinstance(found, Refusal):
            raise UnhonouredConstraint(constraint.kind, constraint.text, str(found))
        if isinstance(found, CompilerFailed):
            raise found
        return found

    def _found(self, key: Key) -> Made | None:
        """What is kept of it, as long as it holds."""
        found = self._kept.get(key)
        if isinstance(found, Refusal) and found.left_s <= 0:
            self._drop(key)
            return None
        if found is not None:
            self._kept.move_to_end(key)
        return found

    async def _awaited(self, key: Key) -> Made | CompilerFailed:
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

    async def _make(self, key: Key, pending: _Pending) -> Made | CompilerFailed:
        async with self._turn:
            pending.begun = True
            return await self._compiled(key)

    async def _compiled(self, key: Key) -> Made | CompilerFailed:
        answer = await self._compiler.compile(key[1])
        if isinstance(answer, Unable):  # not kept: it may be able the next time
            return CompilerFailed(answer.reason)
        made: Made
        if isinstance(answer, GaveUp):
            made = Refusal(answer.reason, since=time.monotonic())
        elif isinstance(answer, Failed):
            made = Refusal(answer.reason)
        elif len(answer.compiled.data) > MAX_COMPILED:
            made = Refusal(f"compiled it takes more than {MAX_COMPILED >> 20} MiB")
        else:
            made = FrontGrammar(next(self._numbers), answer.compiled)
        self._keep(key, made)
        return made

    def _keep(self, key: Key, made: Made) -> None:
        """The latest, and what was asked for before, as far as there is room; refusals too."""
        self._kept[key] = made
        self._bytes += _size(key, made)
        while len(self._kept) > MAX_ENTRIES or self._bytes > MAX_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: Key) -> None:
        self._bytes -= _size(key, self._kept.pop(key))


class _Pending:
    """A constraint that is compiled, or waits for it.

    Attributes:
        waiters: requests that want it.
        begun: whether the compiler has it.
    """

    task: asyncio.Task[Made | CompilerFailed]

    def __init__(self) -> None:
        self.waiters = 0
        self.begun = False


def _size(key: Key, made: Made) -> int:
    data = len(made.reason) if isinstance(made, Refusal) else len(made.compiled.data)
    return len(key[1].text) + data
