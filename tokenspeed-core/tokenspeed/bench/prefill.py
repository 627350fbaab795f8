# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""From a prompt's submission to its first token, one prompt at a time.

Prompts are random, so that no prefix is known; the first of each length warms up.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenspeed.bench.prompts import random_prompt
from tokenspeed.bench.report import Report, Row, compare_times, new_report
from tokenspeed.bench.session import Progress, session

if TYPE_CHECKING:
    from tokenspeed.bench.engine import MeasuredEngine
    from tokenspeed.config import EngineConfig

TOKENS = (2048, 8192, 32768)
LUCK = 0.05
"""Share of a fresh prompt that the prefix cache may know: a few first ids are equal by chance."""


def measure(
    engine: MeasuredEngine, tokens: Sequence[int], repetitions: int, progress: Progress
) -> dict[int, list[float]]:
    """Length -> seconds of each repetition. RuntimeError when a prompt was not all computed."""
    taken: dict[int, list[float]] = {}
    for length in tokens:
        engine.prefill(random_prompt(length))
        watched = engine.look()
        seconds = [engine.prefill(random_prompt(length)) for _ in range(repetitions)]
        work = watched()
        if work.cached_tokens > LUCK * work.prompt_tokens:
            raise RuntimeError(
                f"{work.cached_tokens} of {work.prompt_tokens} tokens of fresh prompts came out of "
                "the prefix cache: this is a fault of the benchmark or of the cache"
            )
        taken[length] = seconds
        between_ms = (sum(seconds) - work.busy_s) / repetitions * 1e3
        host_ms = work.host_us / repetitions / 1e3
        progress(
            f"prefill of {length}: {statistics.median(seconds) * 1e3:.1f} ms, "
            f"{work.prefill_steps / repetitions:g} steps, {between_ms:.1f} ms between them, "
            f"{host_ms:.1f} ms of the host"
        )
    return taken


def run(
    config: EngineConfig, *, tokens: Sequence[int], repetitions: int, progress: Progress
) -> Report:
    """Measure each length beside what products and attention need at the measured rates."""
    with session(config, rows=(), prompts=tokens, repetitions=repetitions, progress=progress) as it:
        taken = measure(it.engine, tokens, repetitions, progress)
        floors = {length: it.floors.prefill(length) for length in tokens}
    rows: list[Row] = [
        compare_times(
            f"prefill, {length} tokens",
            unit="ms",
            ours_s=taken[length],
            theirs_s=[floors[length]],
            versus="floor",
        )
        for length in tokens
    ]
    notes = {
        "device": it.machine.name,
        "prefill": f"from submission to the first token, alone, weights: {config.load}",
        "floor": f"products at {it.machine.rates.matrix_flops_s / 1e12:.4g} TFLOP/s, attention at "
        + ", ".join(f"{r / 1e12:.4g}" for r in it.machine.rates.attention_flops_s.values()),
        **{
            f"{length} tokens": f"{length / min(taken[length]):.0f} tokens/s at best"
            for length in tokens
        },
    }
    samples = {f"prefill {length}": seconds for length, seconds in taken.items()}
    return new_report("ts bench prefill", config.model, rows, samples, notes)
