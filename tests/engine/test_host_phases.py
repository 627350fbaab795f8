# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``ts bench host``: every microsecond of the loop belongs to a phase."""

from __future__ import annotations

import pytest
from tokenspeed.bench import host
from tokenspeed.bench.phases import PHASES, WAIT

STEPS = 40
STEP_MS = 3.0


def test_phases_and_the_wait_add_up_to_the_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "STEP_MS", STEP_MS)
    found = host.run(None, batches=(1, 5), steps=STEPS)
    for rows, steps in found.items():
        assert len(steps) >= STEPS // 2, rows
        assert all(step[phase] > 0 for step in steps for phase in (*PHASES, WAIT))
        total = sum(sum(step.values()) for step in steps)
        assert total >= 0.9 * STEP_MS * 1e6 * len(steps), "the device sets the pace"
    host.show(found)
    assert "all of these" in capsys.readouterr().out
