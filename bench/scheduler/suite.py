# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What is measured, and what we want to reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workloads import (
    Admit,
    AdmitEvicting,
    Boundary,
    Decode,
    Gauges,
    MakePlane,
    Submit,
    Workload,
    WriteBack,
)

CONTEXT = 50_000


@dataclass(frozen=True)
class Entry:
    """One row of the table.

    Attributes:
        what: for people.
        target_us: at most so much for ours; None: see RATIOS.
    """

    what: str
    make: Callable[[MakePlane], Workload]
    target_us: float | None = None


@dataclass(frozen=True)
class Ratio:
    """How much slower ``slow`` may be than ``base``: at most ``target`` times."""

    what: str
    slow: str
    base: str
    target: float


SUITE = {
    "decode_64x2k": Entry("decode 64 x 2K", lambda make: Decode(make, 64, 2_000), 45),
    "decode_64x50k": Entry("decode 64 x 50K", lambda make: Decode(make, 64, CONTEXT), 45),
    "decode_256x2k": Entry("decode 256 x 2K", lambda make: Decode(make, 256, 2_000), 170),
    "decode_256x50k": Entry("decode 256 x 50K", lambda make: Decode(make, 256, CONTEXT), 170),
    "waiting_none": Entry("decode 8 x 50K", lambda make: Decode(make, 8, CONTEXT)),
    "waiting_64x50k": Entry(
        "decode 8 x 50K, 64 x 50K wait", lambda make: Decode(make, 8, CONTEXT, waiting=64)
    ),
    "admit_50k_hit90": Entry("admit 50K, 90 % hit", lambda make: Admit(make, CONTEXT, 0.9), 150),
    "submit_50k": Entry("submit 50K tokens", lambda make: Submit(make, CONTEXT), 150),
    "admit_evict45": Entry(
        "admit, evicts 45 pages",
        lambda make: AdmitEvicting(make, pool=65_536, pages=45, session_tokens=8_192),
        60,
    ),
    "writeback_8k_hostfull": Entry(
        "write back 8K, host tier full",
        lambda make: WriteBack(make, tokens=8_192, host_pages=4_096),
        120,
    ),
    "boundary_256x50k": Entry(
        "page boundary of 256 x 50K", lambda make: Boundary(make, 256, CONTEXT), 350
    ),
    "gauges": Entry("read gauges", lambda make: Gauges(make, 64, CONTEXT), 1),
}

RATIOS = (
    Ratio("64 rows, 50K / 2K", "decode_64x50k", "decode_64x2k", 1.15),
    Ratio("256 rows, 50K / 2K", "decode_256x50k", "decode_256x2k", 1.15),
    Ratio("64 x 50K wait / none", "waiting_64x50k", "waiting_none", 1.2),
)


def in_turn() -> list[list[str]]:
    """The suite's names; those that are compared with each other are measured in turn."""
    slow = {ratio.base: ratio.slow for ratio in RATIOS}
    return [
        [name, slow[name]] if name in slow else [name]
        for name in SUITE
        if name not in slow.values()
    ]
