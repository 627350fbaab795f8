# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The tokens that count, found on the device, are those that the rule says, row by row."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenspeed.engine.acceptance import NOBODY, find_accepted
from tokenspeed.engine.adjustments import Adjustments
from tokenspeed.engine.buffers import Limits
from tokenspeed_cpu.platform import CpuPlatform

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
def test_one_last_of_each_row(rows: list[list[tuple[int, int]]], dead: int) -> None:
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
    before = [place < last(row) for row in rows for place in range(len(row))]
    found = find_accepted(torch.tensor(slots), guess.int(), token)
    living = len(expected)
    assert found.last[:living].tolist() == expected
    assert found.last[living:].tolist() == [NOBODY] * (dead - 1) + [sentinel] * (dead > 0)
    assert found.before[:living].tolist() == before


COUNTED = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 6), st.booleans())
    | st.tuples(st.integers(0, 5), st.integers(-1, 6), st.just(False)),
    max_size=20,
)
"""Slot, token, and whether it counts, which one that is none does not."""


@settings(max_examples=100, deadline=None)
@given(COUNTED)
def test_tokens_are_counted_as_often_as_they_come(drawn: list[tuple[int, int, bool]]) -> None:
    """Several of one slot; slot 0 may hold anything."""
    limits = Limits(sequences=4, tokens=20, groups=1, max_kv_len=8, page_size=4, row_tokens=5)
    tables = Adjustments(CpuPlatform().open(), limits, 7)
    tables.counts.fill_(1)
    columns = torch.tensor(drawn, dtype=torch.int64).view(-1, 3)
    tables.count(columns[:, 0], columns[:, 1], columns[:, 2].bool())
    for slot in range(1, 6):
        for token in range(7):
            assert tables.counts[slot, token] == 1 + 2 * drawn.count((slot, token, True))
