# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A device that claims any capabilities and computes on the CPU, at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tokenspeed_sdk.contracts.platform import (
    GRAPH_CAPTURE,
    Capabilities,
    Event,
    Graph,
    MemoryReport,
    Stream,
)

TOTAL_BYTES = 8 << 30


@dataclass
class FakeDevice:
    """Tensors lie on the CPU; work is done when ``run`` returns.

    Attributes:
        capabilities: whatever a test wants it to claim.
    """

    capabilities: Capabilities
    torch_device: str = "cpu"

    def memory(self) -> MemoryReport:
        return MemoryReport(TOTAL_BYTES, TOTAL_BYTES)

    def allocate(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """Zeros. MemoryError says needed and available bytes."""
        wanted: torch.dtype = getattr(torch, dtype)
        needed = torch.Size(shape).numel() * wanted.itemsize
        if needed > TOTAL_BYTES:
            raise MemoryError(f"needed {needed} bytes, available {TOTAL_BYTES}")
        return torch.zeros(shape, dtype=wanted)

    def host_buffer(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return self.allocate(shape, dtype)

    def stream(self) -> Stream:
        return _FakeStream()

    def capture(self, work: Callable[[], None], stream: Stream) -> Graph:
        """Work that a replay calls again. RuntimeError unless the device claims GRAPH_CAPTURE."""
        if GRAPH_CAPTURE not in self.capabilities.features:
            raise RuntimeError("this device does not claim graph_capture")
        stream.run(work)
        return _FakeGraph(work)


class _FakeStream:
    """Runs work at once; its events report what failed since the event before."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._closed = False

    def run(self, work: Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError("the stream is closed")
        try:
            work()
        except Exception as error:
            self._error = self._error or error

    def record(self) -> Event:
        event, self._error = _FakeEvent(self._error), None
        return event

    def close(self) -> None:
        self._closed = True


@dataclass(frozen=True)
class _FakeEvent:
    error: BaseException | None

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        if self.error is not None:
            raise self.error


@dataclass(frozen=True)
class _FakeGraph:
    work: Callable[[], None]

    def replay(self) -> None:
        self.work()
