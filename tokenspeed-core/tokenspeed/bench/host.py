# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What one decode step costs the host, by phase: the real loop, scheduler, executor and socket.

Without a model the device computes nothing, so any machine can say what the loop itself costs.
With one, the launches are real. Nobody reads what is sent, as the front does in its own process.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import zmq
from rich.console import Console
from rich.table import Table

from tokenspeed.bench.engine import launch_plan
from tokenspeed.bench.phases import PHASES, WAIT, Phases
from tokenspeed.engine.mailbox import Mailbox
from tokenspeed.messages import EngineInput, EngineOutput, FromEngine, Sampling, Submit
from tokenspeed.process.launch import private_ipc

if TYPE_CHECKING:
    from tokenspeed._scheduler import Plan
    from tokenspeed.config import EngineConfig
    from tokenspeed.engine.executor import Executor
    from tokenspeed.engine.loop import EngineLoop

PROMPT = 512
STEP_TOKENS = 8192
STEP_MS = 4.0
"""How long a step of the device that computes nothing seems to take."""

WARMUP = 10
"""Steps of each batch that are not counted."""

GREEDY = Sampling(0.0, -1, 1.0, 0.0, 0)

Steps = list[dict[str, int]]


class Traffic(Mailbox):
    """Sends one batch of requests after the other, in place of a front.

    Attributes:
        rows: of the batch that runs.
    """

    def __init__(self, address: str, batches: Sequence[int], steps: int) -> None:
        super().__init__(address)
        self.rows = 0
        self._batches = list(batches)
        self._steps = steps
        self._open = 0
        self._number = 0

    def receive(self, timeout_ms: int | None) -> list[EngineInput]:
        super().receive(0)
        if self._open:
            return []
        if not self._batches:
            return [EngineInput(stop=True)]
        self.rows = self._open = self._batches.pop(0)
        return [EngineInput(submits=[self._submit() for _ in range(self.rows)])]

    def send(self, message: FromEngine) -> None:
        super().send(message)
        self.heard(message)

    def heard(self, message: FromEngine) -> None:
        """Count the requests that are over."""
        if isinstance(message, EngineOutput):
            self._open -= int(np.count_nonzero(np.frombuffer(message.finish, np.uint8)))

    def _submit(self) -> Submit:
        self._number += 1
        prompt = np.full(PROMPT, 10, np.int32)
        prompt[0] += self._number  # no prompt is another's prefix
        return Submit(self._number, prompt.tobytes(), self._steps, [], GREEDY)


def run(config: EngineConfig | None, *, batches: Sequence[int], steps: int) -> dict[int, Steps]:
    """Nanoseconds by phase of the decode steps of each batch.

    Args:
        config: of an engine on the device that it takes; None: on one that computes nothing.
        steps: tokens of each request.
    """
    with private_ipc() as ipc, zmq.Context() as sockets, sockets.socket(zmq.PAIR) as front:
        front.setsockopt(zmq.RCVHWM, 0)
        front.bind(ipc)
        traffic = Traffic(ipc, batches, steps)
        found: dict[int, Steps] = {rows: [] for rows in batches}
        phases = Phases(lambda plan: _only_decodes(plan, traffic.rows))
        traffic.heard = phases.outside(traffic.heard)  # type: ignore[method-assign]
        with _engine(config, traffic, max(batches), PROMPT + steps) as (executor, loop):
            phases.watch(executor, loop)
            loop.run()
            executor.close()
        traffic.close()
    for rows, step in phases.steps:
        found[rows].append(step)
    return {rows: taken[WARMUP:] for rows, taken in found.items()}


def _only_decodes(plan: Plan, rows: int) -> int:
    return rows if plan.num_decode_rows == plan.num_tokens == rows else 0


@contextmanager
def _engine(
    config: EngineConfig | None, mailbox: Mailbox, rows: int, max_model_len: int
) -> Iterator[tuple[Executor, EngineLoop]]:
    if config is None:
        from tokenspeed.bench.idle_engine import build_idle_engine

        yield build_idle_engine(
            mailbox,
            rows=rows,
            tokens=STEP_TOKENS,
            max_model_len=max_model_len,
            step_ns=int(STEP_MS * 1e6),
        )
        return
    from tokenspeed.engine.start import build_engine
    from tokenspeed.plugins.load.activate import load_platform

    with launch_plan(config) as plan:
        platform = load_platform(plan.plugins)
        platform.prepare(config.threads)  # before torch is imported
        yield build_engine(plan, platform, mailbox)


def show(found: dict[int, Steps]) -> None:
    """Print least and median microseconds of each phase, by batch."""
    table = Table(title="microseconds of the host in a decode step: least, median")
    table.add_column("phase")
    for rows, steps in found.items():
        table.add_column(f"{rows} rows, {len(steps)} steps", justify="right")
    lines = [*((name, (name,)) for name in PHASES), ("all of these", PHASES), (WAIT, (WAIT,))]
    for name, phases in lines:
        table.add_row(name, *(_figures(steps, phases) for steps in found.values()))
    Console().print(table)


def _figures(steps: Steps, phases: Sequence[str]) -> str:
    taken = [sum(step.get(phase, 0) for phase in phases) / 1e3 for step in steps]
    return f"{min(taken):.1f}  {statistics.median(taken):.1f}" if taken else "none"
