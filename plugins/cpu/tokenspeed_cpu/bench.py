# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The candidates of linear side by side: what "linears alone" of a benchmark is the fastest of.

    python -m tokenspeed_cpu.bench --threads 2 --rows 1 16 512

A benchmark that may not import this package gets the same from the kernels of ``linear@1``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite
from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.contracts.probe import Accept

from tokenspeed_cpu.kernels import kernels
from tokenspeed_cpu.platform import CpuPlatform

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Shape:
    """One linear of a model, and how often a step calls it, each time with another weight."""

    name: str
    n: int
    k: int
    count: int
    sampled: bool = False  # computed for sampled rows only: one a request


SMOLLM2_135M = (
    Shape("qkv", 960, 576, 30),
    Shape("o", 576, 576, 30),
    Shape("gate_up", 3072, 576, 30),
    Shape("down", 576, 1536, 30),
    Shape("head", 49152, 576, 1, sampled=True),
)

DECODE_ROWS_MAX = 64
"""More rows than these are a prompt, of which one row is sampled."""


@dataclass(frozen=True)
class Candidate:
    """A kernel of linear for one shape."""

    pack: Callable[[torch.Tensor], Any]
    run: BoundKernel


def linear_candidates(n: int, k: int, device: Capabilities) -> dict[str, Candidate]:
    """Every kernel of linear@1 that accepts an [n, k] weight, by name."""
    site = CallSite("linear@1", "bench", "float32", device, {"n": n, "k": k, "bias": False})
    return {
        kernel.name: Candidate(partial(kernel.pack_weight, site), kernel.bind(site))
        for kernel in kernels()
        if kernel.op == "linear@1" and isinstance(kernel.accept(site), Accept)
    }


def time_linears(
    device: Capabilities, rows: Sequence[int], shapes: Sequence[Shape], repeat: int
) -> dict[str, dict[int, float]]:
    """Seconds that all linears of one step take, best of `repeat`: kernel -> rows -> seconds."""
    import torch

    names = linear_candidates(1, 1, device)
    times = {name: dict.fromkeys(rows, 0.0) for name in names}
    for shape in shapes:
        steps = {name: _steps(shape, device, name) for name in names}
        for count in rows:
            x = torch.randn(1 if shape.sampled and count > DECODE_ROWS_MAX else count, shape.k)
            best = dict.fromkeys(names, float("inf"))
            for _ in range(repeat):  # one after the other, so that a busy moment hits all
                for name in names:
                    best[name] = min(best[name], _seconds(steps[name], x))
            for name in names:
                times[name][count] += best[name]
    return times


def _steps(shape: Shape, device: Capabilities, name: str) -> Callable[[torch.Tensor], None]:
    import torch

    candidate = linear_candidates(shape.n, shape.k, device)[name]
    weights = [candidate.pack(torch.randn(shape.n, shape.k)) for _ in range(shape.count)]

    def run(x: torch.Tensor) -> None:
        for weight in weights:
            candidate.run(x, weight)

    return run


def _seconds(step: Callable[[torch.Tensor], None], x: torch.Tensor) -> float:
    start = time.perf_counter()
    step(x)
    return time.perf_counter() - start


def main() -> None:
    """Print milliseconds a step by kernel and rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 512])
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    platform = CpuPlatform()
    platform.prepare(args.threads)
    device = platform.open().capabilities
    import torch

    with torch.inference_mode():
        times = time_linears(device, args.rows, SMOLLM2_135M, args.repeat)
    print(f"all linears of SmolLM2-135M, ms a step, {device.units} threads, {device.arch}")
    print("rows    " + "".join(f"{count:>9}" for count in args.rows))
    for name, by_rows in times.items():
        print(f"{name:<8}" + "".join(f"{by_rows[count] * 1e3:9.1f}" for count in args.rows))


if __name__ == "__main__":
    main()
