# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Several kernels at one call site: which one runs depends on the number of rows of the call.

A matrix times one row is another problem than times a thousand, and the best kernel may be another.
Where one kernel is best for all row buckets, which is the usual case, none of this is used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tokenspeed_sdk.contracts.kernel import BoundKernel

RowRange: TypeAlias = tuple[int, int | None]
"""Fewest and most rows, both included; None: no bound."""

BUCKETS: tuple[RowRange, ...] = (
    (1, 1),
    (2, 4),
    (5, 8),
    (9, 16),
    (17, 32),
    (33, 64),
    (65, 128),
    (129, None),
)
"""From one token over batches of all sizes to a prompt: each doubling may want another tile."""


def buckets(rows: RowRange) -> tuple[RowRange, ...]:
    """What a site is asked about: its range of rows, cut at the edges of the buckets."""
    low, high = rows
    return tuple(
        (max(low, first), last if high is None else high if last is None else min(high, last))
        for first, last in BUCKETS
        if (high is None or first <= high) and (last is None or low <= last)
    )


def hull(ranges: Sequence[RowRange]) -> RowRange:
    """From the fewest to the most rows of several ranges, which are in rising order."""
    return ranges[0][0], ranges[-1][1]


def text(rows: RowRange) -> str:
    """Such as "1", "2-4" or "129-"."""
    low, high = rows
    return str(low) if low == high else f"{low}-{'' if high is None else high}"


class Packed:
    """A weight as each of several kernels wants it."""

    __slots__ = ("weights",)

    def __init__(self, weights: tuple[Any, ...]) -> None:
        self.weights = weights


def dispatch(limits: Sequence[int], places: Sequence[int], calls: Sequence[BoundKernel]) -> Any:
    """A call that takes the kernel for the rows of its first argument.

    Args:
        limits: most rows of each bucket but the last, which takes all that have more.
        places: for each bucket, which of ``calls`` serves it.
    """

    def run(*args: Any) -> Any:
        place = places[bisect_left(limits, args[0].shape[0])]
        return calls[place](*(a.weights[place] if type(a) is Packed else a for a in args))

    return run


def pack_for_all(packers: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Packed]:
    """One packed weight per kernel; those that take the plain layout share it."""
    return lambda weight: Packed(tuple(pack(weight) for pack in packers))
