# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the processes of a server hold while nothing runs, and whether that grows."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

GROWTH_MB = {"engine": 64 + 24, "front": 24, "gateway": 48, "compiler": 24, "serve": 8}
"""What fragments of allocators and caches that are bounded may add between the first look and the
last. The engine's drafter keeps up to 64 MB of outputs."""
SPARE = 4
"""Descriptors and threads by which two looks may differ: connections close a little later."""


@dataclass(frozen=True)
class Footprint:
    """Of one process, in numbers that a leak makes grow."""

    descriptors: int
    threads: int
    megabytes: float

    @staticmethod
    def of(process: psutil.Process) -> Footprint:
        with process.oneshot():
            resident = process.memory_full_info().uss / 1e6
            return Footprint(process.num_fds(), process.num_threads(), resident)

    def __str__(self) -> str:
        return f"{self.descriptors} fds, {self.threads} threads, {self.megabytes:.0f} MB"


def family(parent: int) -> dict[str, psutil.Process]:
    """The supervisor "serve" and its children, by their roles."""
    supervisor = psutil.Process(parent)
    found = {"serve": supervisor}
    for child in supervisor.children():
        words = " ".join(child.cmdline())
        roles = [role for role in ("engine", "front") if f"--role {role}" in words]
        found[roles[0] if roles else "gateway"] = child  # which renames itself
    for grandchild in found["front"].children():
        found["compiler"] = grandchild
    return found


def growth(first: dict[str, Footprint], last: dict[str, Footprint]) -> list[str]:
    """What grew by more than it may, in words."""
    wrong = []
    for role in first.keys() & last.keys():
        before, after = first[role], last[role]
        if (
            after.descriptors > before.descriptors + SPARE
            or after.threads > before.threads + SPARE
            or after.megabytes > before.megabytes + GROWTH_MB[role]
        ):
            wrong.append(f"{role} grew from {before} to {after}")
    return wrong
