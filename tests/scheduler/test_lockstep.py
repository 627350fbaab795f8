# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Two processes whose memory lies differently plan the same; one that does not is noticed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from lockstep_rank import Rank

STEPS = 50_000
SWAP_AT = 1000
PAGE_IDS = {
    "delta_page",
    *(f"{what}_{end}" for what in ("copy", "store", "load") for end in ("source", "target")),
}
RANK = Path(__file__).parent / "lockstep_rank.py"

# Allocators that agree in nothing, and dictionaries that hash differently.
FIRST = {"PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "1", "MALLOC_PERTURB_": "85"}
SECOND = {
    "PYTHONMALLOC": "pymalloc",
    "PYTHONHASHSEED": "2",
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}


def run_two(steps: int, swap_at: int) -> list[tuple[int, str]]:
    """Exit status and stderr of two ranks, the second of which swaps from ``swap_at`` on."""
    from_first, to_second = os.pipe()
    from_second, to_first = os.pipe()
    ends = [(from_second, to_second), (from_first, to_first)]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK), str(steps), str(seed), str(swap)],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        for (stdin, stdout), variables, seed, swap in zip(
            ends, (FIRST, SECOND), (11, 12), (-1, swap_at), strict=True
        )
    ]
    for pair in ends:
        for end in pair:
            os.close(end)
    try:
        outputs = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [(rank.returncode, output) for rank, output in zip(ranks, outputs, strict=True)]


def test_equal_digests() -> None:
    first, second = run_two(STEPS, swap_at=-1)
    assert first == second
    status, said = first
    assert status == 0, said
    counts = {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", said)}
    assert counts["steps"] >= STEPS
    idle = [name for name, count in counts.items() if count < 100]
    assert not idle, f"the load never reaches {idle}: {said}"


def test_another_page_id_is_noticed() -> None:
    """At one step, and by both: neither goes on."""
    results = run_two(STEPS, swap_at=SWAP_AT)
    steps = [re.findall(r"^RuntimeError: .*?step (\d+)", said, re.MULTILINE) for _, said in results]
    assert [status for status, _ in results] == [1, 1], results
    assert steps[0] == steps[1], results
    assert SWAP_AT <= int(steps[0][0]) < SWAP_AT + 2000


def test_nothing_but_page_ids_differed() -> None:
    """Of the two ranks of the test before, in the step that is noticed."""
    ranks = [Rank(hash_seed=11, swap_at=-1), Rank(hash_seed=12, swap_at=SWAP_AT)]
    plans = [(0, 0), (0, 0)]
    number = 0
    while plans[0] == plans[1]:
        plans = [rank.step(number) for rank in ranks]
        number += 1
        assert number < SWAP_AT + 2000, "the swap has no effect"
    first, second = (rank.arrays for rank in ranks)
    differing = {name for name in first if not np.array_equal(first[name], second[name])}
    assert differing
    assert differing <= PAGE_IDS
