# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One run on one device: first what the device allows, then the engine, which fills its memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.probe import Accept
from tokenspeed_sdk.model_files import read_object

from tokenspeed.bench.engine import MeasuredEngine, launch_plan, measured_engine
from tokenspeed.bench.floors import Floors, Rates, Sizes
from tokenspeed.plugins.load.activate import load_platform

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.platform import Platform

    from tokenspeed.config import EngineConfig
    from tokenspeed.process.launch import LaunchPlan

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Machine:
    """What the device allows a model.

    Attributes:
        name: of the device.
        linears: rows -> seconds of the linear layers alone, each measurement.
        by_torch: the same by torch's kernels, to compare devices by.
        weight_bytes: what one pass over them reads.
    """

    name: str
    sizes: Sizes
    rates: Rates
    linears: dict[int, list[float]]
    by_torch: dict[int, list[float]]
    weight_bytes: int


@dataclass(frozen=True)
class Session:
    """A running engine and what it is compared with."""

    engine: MeasuredEngine
    machine: Machine
    floors: Floors


@contextmanager
def session(
    config: EngineConfig,
    *,
    rows: Sequence[int],
    prompts: Sequence[int] = (),
    repetitions: int,
    progress: Progress,
) -> Iterator[Session]:
    """Measure the device, then run the engine.

    Args:
        rows: batches whose linear layers are measured.
        prompts: lengths whose attention is measured.
    """
    with launch_plan(config) as plan:
        platform = load_platform(plan.plugins)
        platform.prepare(config.threads)  # before torch is imported
        progress("the device and the linear layers alone")
        machine = _measured(plan, platform, rows, prompts, repetitions)
        progress("loading the engine")
        with measured_engine(plan) as engine:
            floors = Floors(machine.sizes, machine.rates, engine.kv_bytes_per_token)
            progress("the engine is ready")
            yield Session(engine, machine, floors)


def _measured(
    plan: LaunchPlan,
    platform: Platform,
    rows: Sequence[int],
    prompts: Sequence[int],
    repetitions: int,
) -> Machine:
    import torch

    from tokenspeed.bench.device_linears import DeviceLinears
    from tokenspeed.bench.device_rates import DeviceRates
    from tokenspeed.bench.model_sites import CODED, heads, model_sites, sizes
    from tokenspeed.registry.kernels import KernelRegistry

    device = platform.open()
    sites = model_sites(plan, device, KernelRegistry(plan.plugins, plan.engine.pins))
    linears = DeviceLinears(plan, device, sites)
    taken: dict[int, list[float]] = {count: [] for count in rows}
    by_torch: dict[int, list[float]] = {count: [] for count in rows}
    for _ in range(repetitions):
        for count in rows:
            taken[count].append(linears.seconds(count))
            by_torch[count].append(linears.seconds(count, by_torch=True))
    weight_bytes = linears.weight_bytes
    del linears
    device_rates = DeviceRates(device, sites[0].dtype)
    coded = any(site.op in CODED for site in sites)
    rates = Rates(
        linears_s={
            count: min(statistics.median(taken[count]), statistics.median(by_torch[count]))
            for count in rows
        },
        read_bytes_s=device_rates.read_bytes_s(),
        matrix_flops_s=device_rates.matrix_flops_s(eight_bits=coded),
        attention_flops_s={n: device_rates.attention_flops_s(n, *heads(sites)) for n in prompts},
    )
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()  # the engine sizes its KV by what is free
    vocab_size = read_object(Path(plan.engine.model) / "config.json")["vocab_size"]
    return Machine(_name(platform), sizes(sites, vocab_size), rates, taken, by_torch, weight_bytes)


def _name(platform: Platform) -> str:
    verdict = platform.probe()
    return verdict.why if isinstance(verdict, Accept) else platform.name


def timed(progress: Progress) -> Progress:
    """The same, with the seconds since now before each line."""
    start = time.monotonic()

    def say(text: str) -> None:
        progress(f"{time.monotonic() - start:6.1f} s  {text}")

    return say
