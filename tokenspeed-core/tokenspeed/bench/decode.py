# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Decode on the device that the engine takes, beside what the device allows.

The first pass computes the prompts and warms up. In the measured ones they come out of the prefix
cache, so that all requests of a batch start together.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenspeed.bench.engine import DecodeSample, MeasuredEngine
from tokenspeed.bench.prompts import random_prompt
from tokenspeed.bench.report import Point, Report, Row, compare_times, new_report, per_second
from tokenspeed.bench.session import Progress, Session, session

if TYPE_CHECKING:
    from tokenspeed.config import EngineConfig

BATCHES = (1, 8, 32, 128)
SWEEP = (1, 2, 4, 8, 16, 32, 64, 128)
PROMPT_TOKENS, STEPS = 1024, 256
WARMUP_STEPS = 16


def measure(
    engine: MeasuredEngine, batch: int, prompt_tokens: int, steps: int, repetitions: int
) -> list[DecodeSample]:
    """Repetitions of ``steps`` decode steps of a batch."""
    prompts = [random_prompt(prompt_tokens) for _ in range(batch)]
    engine.decode_sample(prompts, min(steps, WARMUP_STEPS))
    return [engine.decode_sample(prompts, steps) for _ in range(repetitions)]


def step_seconds(samples: Sequence[DecodeSample], steps: int) -> list[float]:
    """Seconds of a step, of each repetition."""
    return [sample.seconds / steps for sample in samples]


def host_us(samples: Sequence[DecodeSample]) -> list[float]:
    """Microseconds that the engine's loop worked in a step, of each repetition."""
    return [sample.host_us / max(sample.steps, 1) for sample in samples]


def mean_context(prompt_tokens: int, steps: int) -> float:
    """Tokens that a step attends to, on average over the steps."""
    return prompt_tokens + steps / 2


def run(
    config: EngineConfig,
    *,
    batches: Sequence[int],
    prompt_tokens: int,
    steps: int,
    repetitions: int,
    progress: Progress,
) -> Report:
    """Measure each batch: the linears first, then the engine, which fills the memory."""
    taken = {}
    with session(config, rows=batches, repetitions=repetitions, progress=progress) as it:
        for batch in batches:
            progress(f"batch {batch}")
            taken[batch] = measure(it.engine, batch, prompt_tokens, steps, repetitions)
    notes = {
        "device": it.machine.name,
        "decode": f"{steps} steps after {prompt_tokens}-token prompts, greedy, "
        f"weights: {config.load}",
        "floor": f"linears alone, and KV read at {per_second(it.machine.rates.read_bytes_s, 'B')}",
        "linears alone": f"{it.machine.weight_bytes / 1e9:.4g} GB read in a pass",
        **{f"batch {batch}": _note(samples, steps) for batch, samples in taken.items()},
    }
    context = mean_context(prompt_tokens, steps)
    rows = [
        row
        for batch in batches
        for row in _rows(it, batch, step_seconds(taken[batch], steps), context)
    ]
    samples = {f"step {batch}": step_seconds(each, steps) for batch, each in taken.items()}
    samples |= {f"host us {batch}": host_us(each) for batch, each in taken.items()}
    samples |= {f"linears {batch}": seconds for batch, seconds in it.machine.linears.items()}
    points = [_point(batch, step_seconds(each, steps)) for batch, each in taken.items()]
    return new_report("ts bench decode", config.model, rows, samples, notes, points)


def _rows(it: Session, batch: int, seconds: Sequence[float], context: float) -> list[Row]:
    rivals = {
        "floor": [it.floors.decode(batch, context)],
        "linears alone": it.machine.linears[batch],
    }
    return [
        compare_times(
            f"decode, batch {batch}",
            unit="ms a step",
            ours_s=seconds,
            theirs_s=theirs,
            versus=versus,
        )
        for versus, theirs in rivals.items()
    ]


def _point(batch: int, seconds: Sequence[float]) -> Point:
    step = statistics.median(seconds)
    return Point(concurrency=batch, per_user=round(1 / step, 3), per_device=round(batch / step, 3))


def _note(samples: Sequence[DecodeSample], steps: int) -> str:
    step = statistics.median(step_seconds(samples, steps))
    host = statistics.median(host_us(samples))
    return f"{1 / step:.1f} tokens/s for each user, {host:.0f} us of the host a step"
