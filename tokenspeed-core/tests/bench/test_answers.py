# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Latencies of answers against values worked out by hand."""

from __future__ import annotations

import math

import pytest
from tokenspeed.bench.answers import Answer, latencies, percentile, tokens_per_user
from tokenspeed.bench.http_load import Outcome


def answer(sent: float, *arrivals: float, tokens: int | None = None) -> Answer:
    return Answer(sent, list(arrivals), len(arrivals) if tokens is None else tokens)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 99, 7.0),
        ([1.0, 2.0, 3.0, 4.0], 50, 2.5),
        ([4.0, 1.0, 3.0, 2.0], 90, 3.7),  # rank 0.9 * 3 = 2.7, between 3 and 4
        ([float(n) for n in range(101)], 99, 99.0),
    ],
)
def test_percentile(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == pytest.approx(expected)


def test_percentile_of_nothing() -> None:
    assert math.isnan(percentile([], 50))


def test_times_of_an_answer() -> None:
    it = answer(10.0, 10.5, 10.6, 10.8, tokens=5)  # two tokens came with others
    assert it.ttft == pytest.approx(0.5)
    assert it.gaps == pytest.approx([0.1, 0.2])
    assert it.tpot == pytest.approx(0.3 / 4)
    assert answer(0.0, 1.0).tpot is None


def test_latencies_in_milliseconds() -> None:
    found = latencies([answer(0.0, 0.1, 0.2, 0.4), answer(0.0, 0.3, 0.6)])
    assert found["ttft_ms"] == {"p50": 200.0, "p90": 280.0, "p99": 298.0}
    assert found["itl_ms"] == {"p50": 200.0, "p90": 280.0, "p99": 298.0}
    assert set(latencies([answer(0.0, 0.1)])) == {"ttft_ms"}


def test_tokens_of_a_user_follow_from_the_mean_time() -> None:
    assert tokens_per_user([answer(0, 1, 1.1), answer(0, 1, 1.3)]) == pytest.approx(1 / 0.2)
    assert math.isnan(tokens_per_user([answer(0, 1)]))


def test_good_answers_are_within_both_limits() -> None:
    outcome = Outcome(
        answers=[
            answer(0, 0.1, 0.15),  # good
            answer(0, 0.3, 0.35),  # first token too late
            answer(0, 0.1, 0.30),  # the next too late
            answer(0, 0.1),  # good: nothing follows
        ]
    )
    assert outcome.good(0.2, 0.1) == 2
