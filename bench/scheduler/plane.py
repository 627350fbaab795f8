# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the workloads ask of a control plane, whosever it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

PAGE_SIZE = 64


@dataclass(frozen=True)
class Sizes:
    """How large a control plane is to be made: one full-attention cache group.

    Attributes:
        pages: usable device pages of PAGE_SIZE tokens.
        rows: most requests that run at once.
        step_tokens: most query tokens of one step.
        host_pages: usable pages of the host tier.
    """

    pages: int
    rows: int
    step_tokens: int
    host_pages: int = 0


@dataclass(frozen=True)
class Facts:
    """What the last plan held.

    Attributes:
        query_tokens: of all rows together.
        stored_pages: pages that it copies to the host tier.
    """

    rows: int
    query_tokens: int
    stored_pages: int


@dataclass(frozen=True)
class Level:
    """How many requests run and wait, and where the pages are.

    Attributes:
        held_pages: device pages of requests, shared ones counted once.
        empty_pages: device pages that hold nothing.
    """

    running: int
    waiting: int
    held_pages: int
    empty_pages: int
    empty_host_pages: int


class ControlPlane(Protocol):
    """One scheduler behind the calls that a step of an engine makes.

    ``submit``, ``plan``, ``commit`` and ``gauges`` are timed, so they do what an engine has to do
    and nothing else; the others are not.
    """

    def submit(self, request: int, tokens: NDArray[np.int32], max_new_tokens: int) -> None:
        """Hand over one prompt, int32[n]."""

    def plan(self) -> None:
        """Plan a step and read all of the plan that an engine needs."""

    def commit(self) -> None:
        """Build the results of the planned step, hand them over, and read what became of them."""

    def gauges(self) -> tuple[int, int]:
        """Device pages that a request could get, and those that requests hold."""

    def settle(self) -> None:
        """End the transfers of the last plan, and the requests that reached their last token."""

    def abort(self, request: int) -> None:
        """End a request that waits."""

    def facts(self) -> Facts:
        """Of the last plan."""

    def level(self) -> Level:
        """Of now."""
