# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What measurements stand on: the loop's own clock."""

from __future__ import annotations

import time

from tokenspeed.engine.clock import HostClock

WAIT = 0.05


def test_waits_are_not_work() -> None:
    clock = HostClock()
    with clock:
        time.sleep(WAIT)
    before = clock.busy_us()
    assert before < WAIT * 1e6 / 2
    time.sleep(WAIT)
    assert clock.busy_us() - before >= WAIT * 1e6
