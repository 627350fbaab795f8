# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The scheduler benchmark's workloads reach the states that they are about. Nothing is timed here:
each checks its state by itself, and these tests run each once."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "bench" / "scheduler"


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)


WORK = [
    *("decode_64x2k", "decode_64x50k", "decode_256x2k", "decode_256x50k"),
    *("waiting_none", "waiting_64x50k", "admit_50k_hit90", "submit_50k", "admit_evict45"),
    *("writeback_8k_hostfull", "boundary_256x50k", "gauges"),
]


@pytest.mark.parametrize("name", WORK)
def test_workload_reaches_its_state(name: str) -> None:
    from plane_ours import OurPlane
    from suite import SUITE

    assert list(SUITE) == WORK
    assert SUITE[name].make(OurPlane).repetition() > 0


def test_workload_says_that_its_state_is_not_there() -> None:
    """Prompts of 2K fit beside the rows, so they do not wait."""
    from plane_ours import OurPlane
    from workloads import Decode, StateError

    with pytest.raises(StateError, match="rows"):
        Decode(OurPlane, rows=8, context=2_000, waiting=2)
