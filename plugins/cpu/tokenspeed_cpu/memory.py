# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How much memory this process may use."""

from __future__ import annotations

from pathlib import Path

from tokenspeed_sdk.contracts.platform import MemoryReport

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def report(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> MemoryReport:
    """The machine's memory, or the cgroup's where that is less."""
    facts = _meminfo(meminfo)
    total, free = facts["MemTotal"], facts["MemAvailable"]
    limit = _number(cgroup / "memory.max")
    if limit is not None and limit < total:
        # Page cache that the kernel can drop counts as used by the cgroup, but it is free to us.
        used = (_number(cgroup / "memory.current") or 0) - _inactive_file(cgroup)
        total, free = limit, min(free, limit - max(0, used))
    return MemoryReport(total=total, free=max(0, free))


def _meminfo(path: Path) -> dict[str, int]:
    """Name to bytes."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3}


def _number(path: Path) -> int | None:
    """The number in a file; None without one, or when it says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _inactive_file(cgroup: Path) -> int:
    try:
        lines = (cgroup / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
