# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``--verify-page-tables``: what the device holds against what the scheduler means, every step.

A wrong entry reads another request's keys, and nothing fails. So tests copy the resident tables out
behind every step, without stopping the overlap, and compare them with what the scheduler meant when
it planned that step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenspeed._scheduler import Plan, Scheduler

NULL_PAGE = 0
NOBODY = 0
"""The slot that no request ever has. The last one, the sentinel, is nobody's either."""


class PageTableError(RuntimeError):
    """The device's page tables are not the scheduler's: a bug of ours."""


@dataclass(frozen=True)
class MeantTable:
    """Pages of one live request in one cache group, in the order of its tokens.

    0 stands where a sliding window has passed: the device may still name the old page there.
    """

    request: int
    slot: int
    group: int
    pages: np.ndarray  # int32


class PageTableVerifier:
    """Remembers what each planned step means, and compares once the step has run."""

    def __init__(self, scheduler: Scheduler, groups: int = 1) -> None:
        self._scheduler = scheduler
        self._groups = range(groups)
        self._slots: dict[int, int] = {}
        self._meant: dict[int, list[MeantTable]] = {}

    def expect(self, plan: Plan, host: Mapping[str, np.ndarray]) -> None:
        """Take down the tables of all requests that own pages. Call right after every ``plan``."""
        rows = plan.num_rows
        requests, slots = host["row_request"][:rows].tolist(), host["row_slot"][:rows].tolist()
        self._slots.update(zip(requests, slots, strict=True))
        tables = [
            MeantTable(request, slot, group, self._scheduler.page_table(request, group))
            for request, slot in self._slots.items()
            for group in self._groups
        ]
        meant = [table for table in tables if len(table.pages)]
        self._slots = {table.request: table.slot for table in meant}
        if rows:
            self._meant[plan.step] = meant

    def check(self, plan: Plan, tables: Sequence[np.ndarray]) -> None:
        """Compare with the tables of each cache group, [slots, max_pages], as the step left them.

        Raises:
            PageTableError: names step, request, group, slot, entry and both pages.
        """
        for meant in self._meant.pop(plan.step):
            _compare(plan.step, meant, tables[meant.group][meant.slot])
        for table in tables:
            if (table[NOBODY] != NULL_PAGE).any() or (table[-1] != NULL_PAGE).any():
                raise PageTableError(f"after step {plan.step} a slot that is nobody's has a page")


def _compare(step: int, meant: MeantTable, row: np.ndarray) -> None:
    differs = row[: len(meant.pages)] != meant.pages
    wrong = np.flatnonzero(differs & (meant.pages != NULL_PAGE))
    if len(wrong):
        entry = int(wrong[0])
        raise PageTableError(
            f"after step {step} entry {entry} of request {meant.request} in slot {meant.slot}, "
            f"cache group {meant.group}, is page {row[entry]} on the device and page "
            f"{meant.pages[entry]} in the scheduler"
        )
