# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How long the loop itself works: everything but its waits for the device and for messages."""

from __future__ import annotations

import time
from types import TracebackType


class HostClock:
    """Runs from its making on; stands still inside ``with clock:``, which stands for a wait."""

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
