# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Our engine, Transformers and the linear layers alone, side by side on the CPU.

All take turns within each repetition, so that a busy moment of the machine hits all of them.
"""

from __future__ import annotations

import os
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.bench.engine import MeasuredEngine, launch_plan, measured_engine
from tokenspeed.bench.report import Report, Row, compare_rates, new_report
from tokenspeed.config import EngineConfig, Quantization
from tokenspeed.plugins.load.activate import load_platform

if TYPE_CHECKING:
    from tokenspeed.bench.linears import LinearsAlone
    from tokenspeed.bench.static_batch import StaticBatch
    from tokenspeed.process.launch import LaunchPlan

DECODE_STEPS = 64
DECODE_PROMPT = 32
PREFILL_PROMPT = 512
BATCHES = (1, 16)
WARM_STEPS = 8
LINEAR_PASSES = 8
"""Passes over the linears per repetition; their median counts as one measurement."""

BAR_TRANSFORMERS = {1: 1.25, 16: 1.3}
BAR_LINEARS = 0.8
BAR_PREFILL = 1.0

UNIT = "tokens/s"
WAITING = "OMP_WAIT_POLICY"
"""How idle threads wait. Our platform makes ours wait passively; Transformers keeps what its users
get, because passive waiting cost it a quarter at batch 16 and in prefill on a quiet machine."""

Samples = dict[str, list[float]]


def run(
    model: str,
    *,
    threads: int,
    repetitions: int,
    progress: Callable[[str], None],
    quantization: Quantization | None = None,
) -> Report:
    """Measure. ``threads`` are those of each contestant; the quantization is ours alone."""
    config = EngineConfig(
        model=model,
        threads=threads,
        prefix_cache=False,
        max_num_seqs=max(BATCHES),
        quantization=quantization,
    )
    theirs = dict(os.environ)  # before our platform changes it
    with launch_plan(config) as plan, ExitStack() as stack:
        load_platform(plan.plugins).prepare(threads)  # before torch is imported
        progress("loading")
        rivals = _rivals(plan, threads, theirs, stack)
        engine = stack.enter_context(measured_engine(plan))
        samples: Samples = defaultdict(list)
        progress("warming up")
        _repetition(engine, rivals, WARM_STEPS, defaultdict(list))
        for repetition in range(repetitions):
            progress(f"repetition {repetition + 1} of {repetitions}")
            _repetition(engine, rivals, DECODE_STEPS, samples)
        return _report(samples, config, rivals, theirs.get(WAITING, "its default"))


@dataclass(frozen=True)
class _Rivals:
    """Everything that our engine is compared with."""

    transformers: StaticBatch
    linears: list[LinearsAlone]


def _rivals(
    plan: LaunchPlan, threads: int, environment: dict[str, str], stack: ExitStack
) -> _Rivals:
    import torch

    from tokenspeed.bench.linears import LinearsAlone, linear_sites
    from tokenspeed.bench.static_batch import static_batch

    torch.set_num_threads(threads)
    sites, kernels = linear_sites(plan)
    transformers = stack.enter_context(static_batch(plan.engine.model, threads, environment))
    return _Rivals(transformers, [LinearsAlone(plan, name, sites) for name in kernels])


def _repetition(engine: MeasuredEngine, rivals: _Rivals, steps: int, samples: Samples) -> None:
    for batch in BATCHES:
        prompts = [_prompt(DECODE_PROMPT) for _ in range(batch)]
        samples[f"decode {batch} ours"].append(engine.decode(prompts, steps))
        for linears in rivals.linears:
            passes = [linears.step(batch) for _ in range(LINEAR_PASSES)]
            name = f"decode {batch} linears {linears.kernel}"
            samples[name].append(statistics.median(passes) * steps)
        samples[f"decode {batch} transformers"].append(rivals.transformers.decode(prompts, steps))
    prompt = _prompt(PREFILL_PROMPT)
    samples["prefill ours"].append(engine.prefill(prompt))
    samples["prefill transformers"].append(rivals.transformers.prefill(prompt))


def _prompt(length: int) -> list[int]:
    """Random ordinary tokens."""
    return [random.randrange(100, 10_000) for _ in range(length)]


def _report(samples: Samples, config: EngineConfig, rivals: _Rivals, waiting: str) -> Report:
    kernels = [linears.kernel for linears in rivals.linears]
    fastest = {batch: _fastest(samples, batch, kernels) for batch in BATCHES}
    rows = [row for batch in BATCHES for row in _decode_rows(samples, batch, fastest[batch])]
    rows.append(
        compare_rates(
            f"prefill, {PREFILL_PROMPT} tokens",
            work=PREFILL_PROMPT,
            unit=UNIT,
            ours_s=samples["prefill ours"],
            theirs_s=samples["prefill transformers"],
            versus="Transformers",
            bar=BAR_PREFILL,
        )
    )
    notes = {
        "decode": f"{DECODE_STEPS} steps after {DECODE_PROMPT}-token prompts, greedy, float32",
        "our weights": config.quantization or "float32",
        "threads": f"{config.threads} for each contestant, in turn; medians",
        "Transformers": f"static batch, in a process of its own, {WAITING}: {waiting}",
        "linears alone": ", ".join(f"batch {b}: {k} is fastest" for b, k in fastest.items()),
    }
    return new_report("ts bench cpu", config.model, rows, samples, notes)


def _decode_rows(samples: Samples, batch: int, kernel: str) -> list[Row]:
    contestants = (
        ("Transformers", "transformers", BAR_TRANSFORMERS[batch]),
        ("linears alone", f"linears {kernel}", BAR_LINEARS),
    )
    return [
        compare_rates(
            f"decode, batch {batch}",
            work=batch * DECODE_STEPS,
            unit=UNIT,
            ours_s=samples[f"decode {batch} ours"],
            theirs_s=samples[f"decode {batch} {name}"],
            versus=versus,
            bar=bar,
        )
        for versus, name, bar in contestants
    ]


def _fastest(samples: Samples, batch: int, kernels: Sequence[str]) -> str:
    return min(kernels, key=lambda k: statistics.median(samples[f"decode {batch} linears {k}"]))
