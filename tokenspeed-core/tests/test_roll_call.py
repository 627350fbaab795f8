# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Requests that are in no step are named, and nobody else."""

from __future__ import annotations

import numpy as np
import pytest
from tokenspeed.engine import roll_call
from tokenspeed.engine.roll_call import RollCall


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(roll_call, "time", clock)
    return clock


def pass_time(clock: Clock, roll: RollCall, seconds: float, *rows: int) -> dict[int, str]:
    """Ten steps a second with these requests in each; who was named."""
    named: dict[int, str] = {}
    for _ in range(round(seconds * 10)):
        clock.now += 0.1
        if rows:
            roll.planned(np.array(rows, np.uint64))
        found = roll.stuck()
        assert not named.keys() & found.keys(), "named twice"
        named |= found
    return named


def test_who_is_in_every_step_is_never_named(clock: Clock) -> None:
    roll = RollCall()
    roll.begin(1)
    assert pass_time(clock, roll, 300, 1) == {}


def test_who_had_rows_and_has_none_is_named_once_while_others_go_on(clock: Clock) -> None:
    roll = RollCall()
    roll.begin(1)
    roll.begin(2)
    assert pass_time(clock, roll, 10, 1, 2) == {}
    assert pass_time(clock, roll, 28, 1) == {}
    named = pass_time(clock, roll, 100, 1)
    assert named.keys() == {2}
    assert named[2].startswith("has been in no step for 3")
    assert named[2].endswith(" s, though others are")


def test_when_no_step_runs_all_are_named(clock: Clock) -> None:
    roll = RollCall()
    roll.begin(1)
    pass_time(clock, roll, 10, 1)
    roll.begin(2)
    named = pass_time(clock, roll, 40)
    assert named[1].endswith(", and no step runs")
    assert named[2].endswith(" for its first step, and no step runs")


def test_who_waits_for_a_turn_is_not_stuck(clock: Clock) -> None:
    roll = RollCall()
    roll.begin(1)
    roll.begin(2)
    assert pass_time(clock, roll, 200, 1) == {}


def test_who_is_overtaken_by_what_came_much_later_is(clock: Clock) -> None:
    roll = RollCall()
    roll.begin(1)
    roll.begin(2)
    assert pass_time(clock, roll, 40, 1) == {}
    roll.begin(3)
    assert pass_time(clock, roll, 10, 1, 3) == {
        2: "has waited 43 s for its first step, and one that came 40 s later has had its own"
    }


def test_who_ended_is_forgotten(clock: Clock) -> None:
    roll = RollCall()
    roll.begin(1)
    roll.begin(2)
    pass_time(clock, roll, 5, 1, 2)
    roll.end(2)
    roll.end(9)
    assert pass_time(clock, roll, 100, 1) == {}
    assert roll.__dict__["_seen"].keys() == roll.__dict__["_began"].keys() == {1}


def test_who_waits_for_the_scheduler_waits_from_its_coming_on(clock: Clock) -> None:
    roll = RollCall()
    roll.begin(1)
    roll.begin(2)
    assert pass_time(clock, roll, 20, 1) == {}
    roll.begin(2)
    roll.begin(3)
    assert pass_time(clock, roll, 5, 1, 3) == {}
    roll.begin(4)
    named = pass_time(clock, roll, 20, 1, 3, 4)
    assert named == {}, "nobody came 30 s later"
    roll.begin(5)
    assert pass_time(clock, roll, 5, 1, 3, 4, 5).keys() == {2}
