# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Cores by affinity and by the CPU quota of the cgroup, whichever is less; at least 1."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = _quota(cgroup)
    return max(1, min(cores, math.floor(quota))) if quota else cores


def default_threads() -> int:
    """All usable cores but one, which the engine's loop and the front need; at least 1."""
    return max(1, usable_cores() - 1)


def _quota(cgroup: Path) -> float | None:
    """Cores that the cgroup (version 2) grants, None without a limit."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)
