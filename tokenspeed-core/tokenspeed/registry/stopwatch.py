# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How long work takes on a device: many runs behind each other by the host's clock.

Only the platform contract is used. The device is kept busy, so that what launching costs the host
does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.platform import Device

SAMPLE_SECONDS = 0.004
"""Length of one measurement."""

SAMPLES = 5
"""Measurements whose median counts."""

MOST_RUNS = 200
"""In one measurement."""

HANG_SECONDS = 60.0
"""After so long a piece of work is given up; longer than any kernel takes to compile."""

_POLL_SECONDS = 0.001

Run = Callable[[], None]


class HangError(RuntimeError):
    """Work that does not end. It still occupies its stream, so the process should end."""


class Stopwatch:
    """A stream of a device, and a clock."""

    def __init__(self, device: Device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._stream = device.stream()
        self._clock = clock

    def close(self) -> None:
        """End the stream."""
        self._stream.close()

    def finish(self, work: Callable[[], Any]) -> Any:
        """What ``work`` returns once the device has done it; raises what it raised.

        Raises:
            HangError: it did not end within HANG_SECONDS.
        """
        returned: list[Any] = []
        self._stream.run(lambda: returned.append(work()))
        done = self._stream.record()
        end = self._clock() + HANG_SECONDS
        while not done.done():
            if self._clock() > end:
                raise HangError(f"did not end within {HANG_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
        done.wait()
        return returned[0]

    def captured(self, work: Run) -> Run:
        """The work as a graph, which runs without the host's part."""
        return self._device.capture(work, self._stream).replay

    def seconds(self, works: Sequence[Run]) -> list[float]:
        """Of one run of each. They take turns, so that a clock that slows down slows them all."""
        runs = [self._runs(work) for work in works]
        samples = [
            [self._sample(work, n) for work, n in zip(works, runs, strict=True)]
            for _ in range(SAMPLES)
        ]
        return [statistics.median(column) for column in zip(*samples, strict=True)]

    def _runs(self, work: Run) -> int:
        """How often it fits into a sample; the first run warms up."""
        self._sample(work, 1)
        once = self._sample(work, 1)
        return max(1, min(MOST_RUNS, int(SAMPLE_SECONDS / max(once, 1e-9))))

    def _sample(self, work: Run, runs: int) -> float:
        start = self._clock()
        for _ in range(runs):
            self._stream.run(work)
        self._stream.record().wait()
        return (self._clock() - start) / runs
