# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Qwen3-8B with random weights: what one decode step asks of the host and of the GPU.

python -m pytest tests/gpu/test_gpu_trace.py -s      # prints where the time goes
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import submit
from tokenspeed.bench.engine import launch_plan
from tokenspeed.config import EngineConfig
from tokenspeed.engine.start import build_engine
from tokenspeed.messages import EngineInput, EngineOutput, FromEngine, Load

pytestmark = pytest.mark.gpu

PROMPT, ANSWER = 1024, 240
STEPS = range(20, 120)
"""Decode steps that are timed, without a profiler."""
TRACED_STEPS = range(20, 70)
"""Decode steps under the profiler."""
LAUNCHES = 4
MIXED, TIMED, TRACED = "mixed", "timed", "traced"
SIZES = {TIMED: (1, 32, 64, 128), TRACED: (1, 32, 128)}


@dataclass
class Batch:
    """Requests that are sent together, and what was seen of them."""

    size: int
    kind: str
    trace: Any = None
    step_us: float = 0.0
    host_us: float = 0.0


class Traffic:
    """A mailbox that sends one batch after the other and measures while all of it decodes.

    The first batch is of any lengths: its chunks and rows meet in all combinations. The profiler
    comes last: once it ran, the driver is slower for good.
    """

    def __init__(self) -> None:
        self.seen = [Batch(40, MIXED)]
        self.seen += [Batch(size, kind) for kind, sizes in SIZES.items() for size in sizes]
        self._left = list(self.seen)
        self._open = 0
        self._number = 0
        self._decoded = 0
        self._tracer: Any = None
        self._load = Load()
        self._begun = (0.0, 0)

    def of(self, kind: str) -> list[Batch]:
        return [batch for batch in self.seen if batch.kind == kind]

    def receive(self, timeout_ms: int | None) -> list[EngineInput]:
        if self._open:
            return []
        if not self._left:
            return [EngineInput(stop=True)]
        self._now = self._left.pop(0)
        self._open, self._decoded = self._now.size, 0
        return [EngineInput(submits=[self._request() for _ in range(self._now.size)])]

    def send(self, output: FromEngine) -> None:
        if not isinstance(output, EngineOutput):
            return
        self._load = output.load
        self._open -= int(np.count_nonzero(np.frombuffer(output.finish, np.uint8)))
        if len(output.request) == 8 * self._now.size:  # a token for each: all of them decode
            if self._now.kind == TIMED:
                self._time(self._decoded)
            elif self._now.kind == TRACED:
                self._trace(self._decoded)
            self._decoded += 1

    def _request(self) -> Any:
        self._number += 1
        prompt, answer = PROMPT, ANSWER
        if self._now.kind == MIXED:
            prompt, answer = random.randint(1, PROMPT), random.randint(1, 60)
        return submit(self._number, random.choices(range(100, 900), k=prompt), answer)

    def _time(self, decoded: int) -> None:
        if decoded == STEPS.start:
            self._begun = time.perf_counter(), self._load.host_us
        elif decoded == STEPS.stop:
            seconds, host_us = self._begun
            self._now.step_us = (time.perf_counter() - seconds) * 1e6 / len(STEPS)
            self._now.host_us = (self._load.host_us - host_us) / len(STEPS)

    def _trace(self, decoded: int) -> None:
        from tracing import Tracer

        if decoded == TRACED_STEPS.start:
            self._tracer = Tracer()
            self._tracer.start()
        elif decoded == TRACED_STEPS.stop:
            self._tracer.stop()
            self._now.trace = self._tracer.read()


def test_a_decode_step_waits_once_and_launches_little(gpu: Any, qwen3_8b: Path) -> None:
    """And nothing is compiled once requests come."""
    triton = pytest.importorskip("triton")
    from tokenspeed_nvidia.platform import NvidiaPlatform

    config = EngineConfig(
        model=str(qwen3_8b),
        load="dummy",
        platform="nvidia",
        max_num_seqs=128,
        max_model_len=2048,
        max_step_tokens=8192,
        prefix_cache=False,
    )
    traffic, late = Traffic(), []
    with launch_plan(config) as plan:
        executor, loop = build_engine(plan, NvidiaPlatform(), traffic)  # type: ignore[arg-type]
        triton.knobs.runtime.jit_post_compile_hook = lambda **facts: late.append(facts["repr"])
        try:
            loop.run()
        finally:
            triton.knobs.runtime.jit_post_compile_hook = None
        executor.close()
    for batch in traffic.of(TIMED):
        print(f"batch {batch.size}: {batch.step_us:.1f} us a step, host {batch.host_us:.1f} us")
    for batch in traffic.of(TRACED):
        print(f"\nbatch {batch.size} under the profiler:")
        print("\n".join(batch.trace.lines()))
    for batch in traffic.of(TRACED):
        trace = batch.trace
        assert trace.steps >= len(TRACED_STEPS) - 3
        assert set(trace.waits) == {"cudaEventSynchronize"}, trace.waits
        assert trace.waits.total() <= trace.steps + 1
        assert trace.launches.total() <= LAUNCHES * (trace.steps + 1), trace.launches
    assert late == [], "compiled while requests waited"
