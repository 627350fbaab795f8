# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Where the engine's loop spends a step: all of its time, by phase, without a profiler.

Whatever runs between two calls that are watched belongs to the phase that the first of them began,
so the phases add up to the step.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed._scheduler import Plan
    from tokenspeed.engine.executor import Executor
    from tokenspeed.engine.loop import EngineLoop

PHASES = ("receive", "plan", "complete", "launch", "commit", "report", "send", "rest")
"""The loop's own work, in order."""

WAIT, OUTSIDE = "wait", "outside"
"""For the device; and what the benchmark itself does."""


class Phases:
    """Times the steps of one loop.

    Attributes:
        steps: what ``name`` called each step, and its nanoseconds by phase.
    """

    def __init__(self, name: Callable[[Plan], int]) -> None:
        """``name``: what to call the step of a plan; 0: it is left out."""
        self.steps: list[tuple[int, dict[str, int]]] = []
        self._name = name
        self._named = 0
        self._step: dict[str, int] = defaultdict(int)
        self._phase = OUTSIDE
        self._since = time.perf_counter_ns()

    def watch(self, executor: Executor, loop: EngineLoop) -> None:
        """Put the watch around the calls at which one phase ends and another begins."""
        # The scheduler is compiled and takes no attributes: a copy of its methods stands in.
        names = [name for name in dir(loop._scheduler) if not name.startswith("_")]
        scheduler = SimpleNamespace(**{name: getattr(loop._scheduler, name) for name in names})
        loop._scheduler = scheduler  # type: ignore[assignment]
        stream = executor._stream
        for owner, name, during, after in (
            (loop._mailbox, "receive", "receive", "plan"),
            (scheduler, "plan", "plan", "complete"),
            (stream, "run", "launch", "launch"),
            (stream, "record", "launch", "rest"),
            (executor, "wait", WAIT, "commit"),
            (scheduler, "commit_sampled", "commit", "report"),
            (loop._mailbox, "send", "send", "rest"),
        ):
            setattr(owner, name, self._around(getattr(owner, name), during, after))
        scheduler.plan = self._noting(scheduler.plan)
        loop._mailbox.receive = self._beginning(loop._mailbox.receive)  # type: ignore[method-assign]

    def outside(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call of the benchmark's, which is no part of the step; what follows is as before."""

        def timed(*args: Any) -> Any:
            phase = self._phase
            self._switch(OUTSIDE)
            try:
                return call(*args)
            finally:
                self._switch(phase)

        return timed

    def _around(self, call: Callable[..., Any], during: str, after: str) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            self._switch(during)
            result = call(*args)
            self._switch(after)
            return result

        return timed

    def _noting(self, plan: Callable[..., Plan]) -> Callable[..., Plan]:
        def noted(*args: Any) -> Plan:
            planned = plan(*args)
            self._named = self._name(planned)
            return planned

        return noted

    def _beginning(self, receive: Callable[..., Any]) -> Callable[..., Any]:
        def begun(*args: Any) -> Any:
            self._switch("receive")
            if self._named:
                self.steps.append((self._named, dict(self._step)))
            self._named = 0
            self._step.clear()
            return receive(*args)

        return begun

    def _switch(self, phase: str) -> None:
        now = time.perf_counter_ns()
        self._step[self._phase] += now - self._since
        self._phase, self._since = phase, now
