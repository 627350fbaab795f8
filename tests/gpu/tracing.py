# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the CUDA runtime was asked for and what the GPU ran, between graph launches."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

GRAPH = "cudaGraphLaunch"
LAUNCHES = ("LaunchKernel", "GraphLaunch", "MemcpyAsync", "MemsetAsync", "Memcpy2DAsync")
WAITS = ("Synchronize", "cudaMalloc", "cudaFree")


def is_wait(name: str) -> bool:
    """Whether a call makes the host wait for the device."""
    return any(wait in name for wait in WAITS) or name in ("cudaMemcpy", "cudaMemset")


def is_launch(name: str) -> bool:
    """Whether a call gives the device work."""
    return any(launch in name for launch in LAUNCHES)


@dataclass(frozen=True)
class Trace:
    """A window that begins and ends with a graph launch.

    Attributes:
        steps: graph launches, the last of them left out.
        calls: calls of the runtime and the driver by name.
        kernels: microseconds on the GPU by kernel name.
        microseconds: length of the window.
    """

    steps: int
    calls: Counter[str]
    kernels: dict[str, float]
    microseconds: float

    @property
    def waits(self) -> Counter[str]:
        return Counter({name: n for name, n in self.calls.items() if is_wait(name)})

    @property
    def launches(self) -> Counter[str]:
        return Counter({name: n for name, n in self.calls.items() if is_launch(name)})

    def lines(self, most: int = 12) -> list[str]:
        """For people: what a step consists of."""
        busy = sum(self.kernels.values())
        lines = [
            f"{self.microseconds / self.steps:9.1f} us a step, kernels {busy / self.steps:.1f} us",
            "calls a step: "
            + ", ".join(f"{name} {n / self.steps:.2f}" for name, n in self.calls.most_common()),
        ]
        longest = sorted(self.kernels.items(), key=lambda item: -item[1])
        lines += [f"{us / self.steps:9.1f} us  {name[:90]}" for name, us in longest[:most]]
        rest = sum(us for _, us in longest[most:])
        return [*lines, f"{rest / self.steps:9.1f} us  {max(len(longest) - most, 0)} others"]


class Tracer:
    """Starts and stops anywhere in a program."""

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CUDA])

    def start(self) -> None:
        self._profile.start()

    def stop(self) -> None:
        self._profile.stop()

    def read(self) -> Trace:
        """What happened from the first graph launch to the last."""
        events = list(self._profile.profiler.kineto_results.events())
        graphs = sorted(event.start_ns() for event in events if event.name() == GRAPH)
        first, last = graphs[0], graphs[-1]
        calls: Counter[str] = Counter()
        kernels: dict[str, float] = defaultdict(float)
        for event in events:
            if not first <= event.start_ns() < last:
                continue
            if _on_gpu(event):
                kernels[event.name()] += event.duration_ns() / 1e3
            elif event.name().startswith("cu"):
                calls[event.name()] += 1
        return Trace(len(graphs) - 1, calls, dict(kernels), (last - first) / 1e3)


def _on_gpu(event: Any) -> bool:
    """Kernels and copies; calls of the runtime and the profiler's marks of waits are not."""
    name = event.name()
    on_gpu = "cuda" in str(event.device_type()).lower()
    return on_gpu and not name.startswith("cu") and not name.endswith("Sync")
