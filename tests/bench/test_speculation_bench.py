# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What counts in the benchmark of drafters."""

from __future__ import annotations

import pytest
from tokenspeed.bench.answers import Answer
from tokenspeed.bench.speculation import LOOP_TIMES, LOOP_TOKENS, Pair, loops


def answer(tokens: list[int], seconds: float) -> Answer:
    made = Answer(0.0, prompt_tokens=3)
    made.token_ids, made.tokens = tokens, len(tokens)
    made.arrivals = [1.0, 1.0 + seconds]
    return made


def test_a_run_of_tokens_that_comes_thrice_is_a_loop() -> None:
    run = list(range(LOOP_TOKENS))
    assert loops(run * LOOP_TIMES)
    assert not loops(run * (LOOP_TIMES - 1) + list(range(50, 90)))
    assert not loops(run[:-1] * LOOP_TIMES)
    assert not loops([])


def test_looping_answers_are_counted_and_left_out() -> None:
    pair = Pair()
    pair.add("fine", answer([1, 2, 3], 2.0), answer([1, 2, 3], 4.0))
    pair.add("loop", answer([7] * 80, 1.0), answer([7] * 80, 9.0))
    pair.add("ours", answer([7] * 80, 1.0), answer([1, 2], 9.0))
    pair.add("other", answer([1, 2, 4, 5, 6], 1.0), answer([1, 2, 3, 5], 2.0))
    assert (pair.looped, pair.differing) == (2, 2)
    assert (pair.with_s, pair.without_s) == pytest.approx((3.0, 6.0))
    assert (pair.with_tokens, pair.without_tokens) == (6, 5)
    assert sorted(pair.samples) == ["fine", "other"]
