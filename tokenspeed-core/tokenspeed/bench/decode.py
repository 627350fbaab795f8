# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Decode on the device that the engine takes, beside the linear layers alone.

The first pass computes the prompts and warms up. In the measured ones they come out of the prefix
cache, so that all requests of a batch start together.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.probe import Accept

from tokenspeed.bench.engine import DecodeSample, MeasuredEngine, launch_plan, measured_engine
from tokenspeed.bench.report import Report, Row, compare_rates, new_report
from tokenspeed.plugins.load.activate import load_platform

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.platform import Platform

    from tokenspeed.config import EngineConfig
    from tokenspeed.process.launch import LaunchPlan

LOWEST_ID, IDS = 10, 80
"""Prompts are of ids that every vocabulary has."""

Samples = dict[str, list[float]]


def run(
    config: EngineConfig,
    *,
    batches: Sequence[int],
    prompt_tokens: int,
    steps: int,
    repetitions: int,
    progress: Callable[[str], None],
) -> Report:
    """Measure each batch: the linears first, then the engine, which fills the memory."""
    samples: Samples = defaultdict(list)
    with launch_plan(config) as plan:
        platform = load_platform(plan.plugins)
        platform.prepare(config.threads)  # before torch is imported
        progress("the linear layers alone")
        weight_bytes = _linears(plan, platform, batches, repetitions, samples)
        progress("loading the engine")
        with measured_engine(plan) as engine:
            for batch in batches:
                progress(f"batch {batch}")
                _engine(engine, batch, prompt_tokens, steps, repetitions, samples)
    rows = [_row(samples, batch, steps) for batch in batches]
    notes = {
        "device": _device(platform),
        "decode": f"{steps} steps after {prompt_tokens}-token prompts, greedy, "
        f"weights: {config.load}",
        "linears alone": f"{weight_bytes / 1e9:.4g} GB read in a pass",
        **{f"batch {batch}": _note(samples, batch) for batch in batches},
    }
    return new_report("ts bench decode", config.model, rows, samples, notes)


def _linears(
    plan: LaunchPlan,
    platform: Platform,
    batches: Sequence[int],
    repetitions: int,
    samples: Samples,
) -> int:
    """Seconds of a pass for each batch, several times; returns the bytes of their weights."""
    import torch

    from tokenspeed.bench.device_linears import DeviceLinears

    linears = DeviceLinears(plan, platform.open())
    for _ in range(repetitions):
        for batch in batches:
            samples[f"linears {batch}"].append(linears.seconds(batch))
    weight_bytes: int = linears.weight_bytes
    del linears
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()  # the engine sizes its KV by what is free
    return weight_bytes


def _engine(
    engine: MeasuredEngine,
    batch: int,
    prompt_tokens: int,
    steps: int,
    repetitions: int,
    samples: Samples,
) -> None:
    prompts = [
        [random.randrange(LOWEST_ID, LOWEST_ID + IDS) for _ in range(prompt_tokens)]
        for _ in range(batch)
    ]
    for repetition in range(-1, repetitions):
        sample: DecodeSample = engine.decode_sample(prompts, steps)
        if repetition >= 0:
            samples[f"step {batch}"].append(sample.seconds / steps)
            samples[f"host us {batch}"].append(sample.host_us / max(sample.steps, 1))


def _row(samples: Samples, batch: int, steps: int) -> Row:
    return compare_rates(
        f"decode, batch {batch}",
        work=batch,
        unit="tokens/s",
        ours_s=samples[f"step {batch}"],
        theirs_s=samples[f"linears {batch}"],
        versus="linears alone",
    )


def _note(samples: Samples, batch: int) -> str:
    step, linears, host = (
        statistics.median(samples[f"{name} {batch}"]) for name in ("step", "linears", "host us")
    )
    return (
        f"{step * 1e3:.3f} ms a step, {linears * 1e3:.3f} ms of linears alone, "
        f"{1 / step:.1f} tokens/s for each user, {host:.0f} us of the host a step"
    )


def _device(platform: Platform) -> str:
    verdict = platform.probe()
    return verdict.why if isinstance(verdict, Accept) else platform.name
