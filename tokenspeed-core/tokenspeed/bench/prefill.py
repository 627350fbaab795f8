# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""From a prompt's submission to its first token, one prompt at a time.

Prompts are random, so that no prefix is known; the first of each length warms up. A device at its
power limit computes slower for seconds, so what ran before a prompt shows in its time: each is
measured at rest, and then some right behind one another.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.bench.prompts import random_prompt
from tokenspeed.bench.report import Report, Row, compare_times, new_report, per_second
from tokenspeed.bench.session import Progress, session

if TYPE_CHECKING:
    from tokenspeed.bench.engine import MeasuredEngine
    from tokenspeed.config import EngineConfig

TOKENS = (2048, 8192, 32768)
REST_S = 0.5
"""Before a prompt that is measured at rest."""

LUCK = 0.05
"""Share of a fresh prompt that the prefix cache may know: a few first ids are equal by chance."""


@dataclass(frozen=True)
class Prefilled:
    """Seconds of each repetition: after REST_S seconds of nothing, and right behind one another."""

    rested: list[float]
    behind: list[float]


def measure(
    engine: MeasuredEngine, tokens: Sequence[int], repetitions: int, progress: Progress
) -> dict[int, Prefilled]:
    """By length. RuntimeError when a prompt was not all computed."""
    taken: dict[int, Prefilled] = {}
    for length in tokens:
        engine.prefill(random_prompt(length))
        watched = engine.look()
        each = Prefilled([], [])
        for _ in range(repetitions):
            prompt = random_prompt(length)
            time.sleep(REST_S)
            each.rested.append(engine.prefill(prompt))
        for prompt in [random_prompt(length) for _ in range(repetitions)]:
            each.behind.append(engine.prefill(prompt))
        work = watched()
        if work.cached_tokens > LUCK * work.prompt_tokens:
            raise RuntimeError(
                f"{work.cached_tokens} of {work.prompt_tokens} tokens of fresh prompts came out of "
                "the prefix cache: this is a fault of the benchmark or of the cache"
            )
        taken[length] = each
        count = 2 * repetitions
        between_ms = (sum(each.rested) + sum(each.behind) - work.busy_s) / count * 1e3
        rested, behind = (statistics.median(s) * 1e3 for s in (each.rested, each.behind))
        progress(
            f"prefill of {length}: {rested:.1f} ms, right behind another {behind:.1f} ms, "
            f"{work.prefill_steps / count:g} steps, {between_ms:.1f} ms between them, "
            f"{work.host_us / count / 1e3:.1f} ms of the host"
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
            ours_s=taken[length].rested,
            theirs_s=[floors[length]],
            versus="floor",
        )
        for length in tokens
    ]
    notes = {
        "device": it.machine.name,
        "prefill": f"from submission to the first token, alone, {REST_S} s behind anything else, "
        f"weights: {config.load}",
        "floor": f"products at {per_second(it.machine.rates.matrix_flops_s, 'FLOP')}, attention at "
        + ", ".join(per_second(r, "FLOP") for r in it.machine.rates.attention_flops_s.values()),
        **{
            f"{length} tokens": f"{length / min(taken[length].rested):.0f} tokens/s at best"
            for length in tokens
        },
    }
    samples = {
        f"prefill {length}{said}": seconds
        for length, each in taken.items()
        for said, seconds in (("", each.rested), (" right behind another", each.behind))
    }
    return new_report("ts bench prefill", config.model, rows, samples, notes)
