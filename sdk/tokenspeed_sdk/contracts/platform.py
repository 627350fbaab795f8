# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Contract ``platform``: a device type, what it can do, and how work is queued on it.

An entry point in ``tokenspeed.platform`` is a zero-argument callable that returns a Platform. Its
module must be light: no torch at import. Whoever asks, asks capabilities, never names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tokenspeed_sdk.contracts.probe import Verdict

if TYPE_CHECKING:
    import torch

GRAPH_CAPTURE = "graph_capture"
"""Feature: ``Device.capture`` works."""

HOST_MEMORY = "host_memory"
"""Feature: tensors live in the host's memory, which other processes need too."""


@dataclass(frozen=True)
class Capabilities:
    """What kernels and the engine may rely on.

    Attributes:
        device_type: torch device type, such as "cpu" or "cuda".
        arch: instruction set, such as "x86-64-v4" or "sm_90".
        dtypes: dtypes it computes well in, best first; the first is the default of a model.
        features: further facts, such as GRAPH_CAPTURE or "avx512".
        units: cores or multiprocessors that a kernel may use.
        product: what its maker calls it, such as "NVIDIA H200".
        toolchain: what else decides how fast a kernel is, such as "cuda 13.0, driver 580.65".
    """

    device_type: str
    arch: str
    dtypes: tuple[str, ...]
    features: frozenset[str]
    units: int
    product: str = ""
    toolchain: str = ""


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of the memory that tensors on the device live in.

    Attributes:
        total, free: of the device, whoever uses it.
        used, peak: what tensors of this process take now, and took at most.
    """

    total: int
    free: int
    used: int = 0
    peak: int = 0


class Event(Protocol):
    """A point in a stream."""

    def done(self) -> bool:
        """Whether all work queued before it has ended. Never blocks."""

    def wait(self) -> None:
        """Block the calling thread, without the GIL, until done; raise what the work raised."""


class Stream(Protocol):
    """An ordered queue of work."""

    def run(self, work: Callable[[], None]) -> None:
        """Queue ``work`` behind all earlier work and return at once.

        A device with a queue of its own calls ``work`` now, with this stream current, and
        ``work`` only launches; one without calls it later on a thread of its own.
        """

    def record(self) -> Event:
        """An event behind all work queued so far."""

    def close(self) -> None:
        """Wait for queued work and end. Idempotent."""


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Launch it again on the current stream, on the memory it was captured with."""


class Device(Protocol):
    """One opened device. Used by one engine rank."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def torch_device(self) -> str:
        """What torch calls it, such as "cpu" or "cuda:0"."""

    def memory(self) -> MemoryReport:
        """What it has and what is used, now."""

    def allocate(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """A zeroed tensor on the device. MemoryError says needed and available bytes."""

    def host_buffer(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """A zeroed host tensor from which and to which the device copies asynchronously."""

    def stream(self) -> Stream:
        """A new stream."""

    def capture(self, work: Callable[[], None], stream: Stream) -> Graph:
        """Capture what ``work`` launches. RuntimeError without GRAPH_CAPTURE."""


class Platform(Protocol):
    """A kind of device, before any is opened."""

    @property
    def name(self) -> str: ...

    @property
    def embedded(self) -> bool:
        """True for a default that is chosen only when no other platform is installed or named."""

    def probe(self) -> Verdict:
        """Whether this machine has such a device. Light: no torch; at most a few milliseconds."""

    def prepare(self, threads: int | None) -> None:
        """Set what must be set in the process before torch is imported (environment variables)."""

    def open(self, index: int = 0) -> Device:
        """Open a device. RuntimeError says what is missing and what to do."""
