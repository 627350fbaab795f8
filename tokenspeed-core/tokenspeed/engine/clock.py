# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How long the loop itself works, and how long the device works on each step."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType


class HostClock:
    """All but the loop's waits for the device and for messages.

    Runs from its making on; stands still inside ``with clock:``, which stands for a wait.
    """

    def __init__(self) -> None:
        self._started_ns = time.perf_counter_ns()
        self._waited_ns = 0
        self._wait_began_ns = 0

    def __enter__(self) -> None:
        self._wait_began_ns = time.perf_counter_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._waited_ns += time.perf_counter_ns() - self._wait_began_ns

    def busy_us(self) -> int:
        """Microseconds of work so far."""
        return (time.perf_counter_ns() - self._started_ns - self._waited_ns) // 1000


class StepClock:
    """Times steps that queue up on the device and end in order."""

    def __init__(self) -> None:
        self._launched_ns: deque[int] = deque()
        self._last_end_ns = 0

    def launching(self) -> None:
        """The first launch of one more step is next; the device may begin before the last."""
        self._launched_ns.append(time.perf_counter_ns())

    def ended(self) -> int:
        """The oldest step ended: microseconds since the device could begin it."""
        begin = max(self._launched_ns.popleft(), self._last_end_ns)
        self._last_end_ns = time.perf_counter_ns()
        return (self._last_end_ns - begin) // 1000
