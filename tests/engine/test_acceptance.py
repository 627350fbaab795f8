# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The last tokens of rows, found on the device, are those that the rule says, row by row."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenspeed.engine.acceptance import NOBODY, last_of_rows

TOKENS = st.integers(-1, 2)
"""Few, so that many guesses are right; -1 is none."""

ROWS = st.lists(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=6), min_size=1, max_size=6)
"""Of each token: what it was drawn behind, what was drawn."""


def last(row: list[tuple[int, int]]) -> int:
    """The place in its row of the last token that counts."""
    count = 1
    while count < len(row) and row[count - 1][1] == row[count][0] and row[count][1] >= 0:
        count += 1
    return count - 1


@settings(max_examples=300, deadline=None)
@given(ROWS, st.integers(0, 3))
def test_one_of_each_row(rows: list[list[tuple[int, int]]], dead: int) -> None:
    """And one of all dead rows together, whose slot is the same."""
    sentinel = len(rows) + 1
    slots = [slot for slot, row in enumerate(rows, 1) for _ in row] + [sentinel] * dead
    pairs = [pair for row in rows for pair in row] + [(0, 0)] * dead
    guess, token = (torch.tensor(column) for column in zip(*pairs, strict=True))
    expected = [
        slot if place == last(row) else NOBODY
        for slot, row in enumerate(rows, 1)
        for place in range(len(row))
    ]
    found = last_of_rows(torch.tensor(slots), guess.int(), token).tolist()
    assert found[: len(expected)] == expected
    assert found[len(expected) :] == [NOBODY] * (dead - 1) + [sentinel] * (dead > 0)
