# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Requests that are in no step, although steps run: each is named once.

roll = RollCall()
roll.begin(7)
roll.planned(np.array([3, 4]))      # the requests of a step's rows
roll.stuck()                        # now and then: {7: "has been in no step for 31 s, ..."}
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

PATIENCE = 30.0
"""Seconds after which a request that is in no step is named."""


class RollCall:
    """Looks at who was there every tenth of the patience; between two looks, a step costs something
    only until all who are open have been seen."""

    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        self._seen: dict[int, float] = {}  # of those that have started: when they were there last
        self._unseen: set[int] = set()  # since the last look
        self._named: set[int] = set()
        self._steps = 0  # since the last look
        self._newest = 0.0  # the latest beginning among those that have started
        self._last_step = self._due = time.monotonic()

    def begin(self, request: int) -> None:
        """It came; again once the scheduler has it, if it had to wait for that."""
        self._began.setdefault(request, time.monotonic())
        self._unseen.add(request)

    def end(self, request: int) -> None:
        """It is over; nothing happens if it never began."""
        self._began.pop(request, None)
        self._seen.pop(request, None)
        self._unseen.discard(request)
        self._named.discard(request)

    def planned(self, requests: np.ndarray) -> None:
        """These are in the next step."""
        self._steps += 1
        if self._unseen:
            self._unseen.difference_update(requests.tolist())

    def stuck(self) -> dict[int, str]:
        """Requests that are stuck and were not named yet: how, for people. Empty at most calls."""
        now = time.monotonic()
        if now < self._due:
            return {}
        self._due = now + PATIENCE / 10
        self._look(now)
        reasons = {r: self._reason(r, now) for r in self._began if r not in self._named}
        stuck = {request: reason for request, reason in reasons.items() if reason}
        self._named |= stuck.keys()
        return stuck

    def _look(self, now: float) -> None:
        for request in self._began.keys() - self._unseen:
            self._seen[request] = now
            self._newest = max(self._newest, self._began[request])
        if self._steps:
            self._steps, self._last_step = 0, now
        self._unseen = set(self._began)

    def _reason(self, request: int, now: float) -> str:
        """One that never had a row waits for its turn, as long as others have theirs who did not
        come much later."""
        began, seen = self._began[request], self._seen.get(request)
        runs = now - self._last_step < PATIENCE
        others = "though others are" if runs else "and no step runs"
        if seen is not None and now - seen >= PATIENCE:
            return f"has been in no step for {now - seen:.0f} s, {others}"
        if seen is None and now - began >= PATIENCE:
            if not runs:
                return f"has waited {now - began:.0f} s for its first step, and no step runs"
            if self._newest - began >= PATIENCE:
                later = f"one that came {self._newest - began:.0f} s later has had its own"
                return f"has waited {now - began:.0f} s for its first step, and {later}"
        return ""
