# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which calls one bound kernel gets, in which order, and for how many rows a site may ask."""

from __future__ import annotations

import os
import zlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from tokenspeed_sdk.testing.kernel.cases import FACTS, Call, Case, Inputs

RowRange: TypeAlias = tuple[int, int | None]

ANY_ROWS: RowRange = (1, None)

ROW_RANGES: tuple[RowRange, ...] = ((1, 1), (2, 8), (9, 64), (65, None))
"""A resolver may choose a kernel for each. It binds one for all that the kernel was chosen for."""

GROWTH = 3.0
"""How much larger the activations of later steps are: what fits the first one fits no longer."""

FEW_ROWS = 4
"""Cases of fewer are called several times: each grid has some, and they are quick."""

FEW_STEPS = 3
"""Results may take turns in two buffers."""


SEED = "KERNEL_KIT_SEED"
"""Environment variable: any text, for other random values than those of every other run."""


@dataclass(frozen=True)
class Step:
    """One call of a bound kernel.

    Attributes:
        index: of the call; each has values of its own.
        thread: whether it comes from another thread.
    """

    case: Case
    index: int = 0
    thread: bool = False

    def make(self, dtype: str, device: str) -> Call:
        """The arguments."""
        key = (self.case.name, dtype, os.environ.get(SEED, ""))
        seed = zlib.crc32(repr(key).encode()) + self.index
        later = self.index > 0 and bool(FACTS[self.case.op].bounds)  # exact ops know no size
        scale = GROWTH if later else 1.0
        return self.case.make(Inputs(seed, getattr(torch, dtype), device, scale))


def rows_around(rows: int) -> RowRange:
    """The range that holds so many rows; any rows for none."""
    within = (r for r in ROW_RANGES if r[0] <= rows and (r[1] is None or rows <= r[1]))
    return next(within, ANY_ROWS)


def repeated(case: Case) -> list[Step]:
    """The steps of one case."""
    count = FEW_STEPS if 0 < case.rows < FEW_ROWS else 1
    return [Step(case, index) for index in range(count)]


def up_and_down(cases: Iterable[Case]) -> list[Step]:
    """More rows, fewer, and more again from another thread; none where no case has rows."""
    by_rows = {case.rows: case for case in sorted(cases, key=lambda case: case.rows) if case.rows}
    if not by_rows:
        return []
    each = list(by_rows.values())
    low, middle, high = each[0], each[len(each) // 2], each[-1]
    order = {1: (low, low, low), 2: (low, high, low, high)}.get(
        len(each), (middle, high, low, middle)
    )
    return [Step(case, index, index == len(order) - 1) for index, case in enumerate(order)]


def some_sites(cases: Iterable[Case]) -> list[tuple[Case, ...]]:
    """The cases of up to two sites of an op, if possible of those with several numbers of rows."""
    by_traits: dict[Hashable, list[Case]] = {}
    for case in cases:
        by_traits.setdefault(frozenset(case.traits.items()), []).append(case)
    sites = [tuple(each) for each in by_traits.values()]
    several = [site for site in sites if len({case.rows for case in site if case.rows}) > 1]
    best = several or sites[-1:]
    return best[:1] + best[1:][-1:]
