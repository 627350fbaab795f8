# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Devices that misbehave on purpose, around one that works."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.platform import (
    GRAPH_CAPTURE,
    Capabilities,
    Device,
    Event,
    Graph,
    MemoryReport,
    Stream,
)

if TYPE_CHECKING:
    import torch

LONGEST_DELAY = 0.002
"""Seconds that a delaying device adds to a piece of work at most."""


class WrappedDevice:
    """A device that passes everything on."""

    def __init__(self, device: Device) -> None:
        self._device = device

    @property
    def capabilities(self) -> Capabilities:
        return self._device.capabilities

    @property
    def torch_device(self) -> str:
        return self._device.torch_device

    def memory(self) -> MemoryReport:
        return self._device.memory()

    def allocate(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return self._device.allocate(shape, dtype)

    def host_buffer(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return self._device.host_buffer(shape, dtype)

    def stream(self) -> Stream:
        return self._device.stream()

    def capture(self, work: Callable[[], None], stream: Stream) -> Graph:
        return self._device.capture(work, stream)


class DelayingDevice(WrappedDevice):
    """Its work ends at random times, so that whoever relies on timing is found out.

    The wrapped device must run work on a thread of its own: the delay stands in the work.
    """

    def __init__(self, device: Device, seed: int) -> None:
        super().__init__(device)
        self._random = random.Random(seed)

    def stream(self) -> Stream:
        return _DelayingStream(self._device.stream(), self._random)


class _DelayingStream:
    def __init__(self, stream: Stream, rng: random.Random) -> None:
        self._stream = stream
        self._random = rng

    def run(self, work: Callable[[], None]) -> None:
        delay = self._random.random() * LONGEST_DELAY

        def delayed() -> None:
            time.sleep(delay)
            work()

        self._stream.run(delayed)

    def record(self) -> Event:
        return self._stream.record()

    def close(self) -> None:
        self._stream.close()


class ReplayingDevice(WrappedDevice):
    """Has graph capture where the hardware has not: a replay calls the captured work again.

    Like a real graph, it sees the memory that it was captured with and nothing that the host
    decides afterwards, as long as the work reads all that changes from that memory.

    Attributes:
        replays: how often each captured graph ran, in order of capture.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.replays: list[int] = []

    @property
    def capabilities(self) -> Capabilities:
        inner = self._device.capabilities
        return replace(inner, features=inner.features | {GRAPH_CAPTURE})

    def capture(self, work: Callable[[], None], stream: Stream) -> Graph:
        stream.run(work)
        stream.record().wait()
        self.replays.append(0)
        return _ReplayedWork(work, self.replays, len(self.replays) - 1)


@dataclass(frozen=True)
class _ReplayedWork:
    work: Callable[[], None]
    replays: list[int]
    index: int

    def replay(self) -> None:
        self.replays[self.index] += 1
        self.work()
