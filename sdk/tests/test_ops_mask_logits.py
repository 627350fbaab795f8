# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""mask_logits@1 against a loop over bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenspeed_sdk import ops


@given(
    st.integers(1, 70), st.integers(1, 5), st.lists(st.integers(-1, 4), max_size=5), st.integers(0)
)
def test_bits_decide(vocab: int, rows: int, targets: list[int], seed: int) -> None:
    luck = torch.Generator().manual_seed(seed % 2**31)
    targets = [t for i, t in enumerate(targets) if t < rows and (t < 0 or t not in targets[:i])]
    logits = torch.randn(rows, vocab, generator=luck)
    words = -(-vocab // 32)
    mask = torch.randint(
        -(2**31), 2**31 - 1, (len(targets), words), dtype=torch.int32, generator=luck
    )
    expected = logits.clone()
    for words_of, row in zip(mask.tolist(), targets, strict=True):
        for token in range(vocab if row >= 0 else 0):
            if not (words_of[token // 32] >> (token % 32)) & 1:
                expected[row, token] = float("-inf")
    assert ops.mask_logits(logits, mask, torch.tensor(targets, dtype=torch.int32)) is None
    assert torch.equal(logits, expected)


def test_a_row_that_keeps_nothing_has_no_token() -> None:
    logits = torch.zeros(1, 40)
    ops.mask_logits(logits, torch.zeros(1, 2, dtype=torch.int32), torch.zeros(1).int())
    one, none = torch.ones(1), torch.zeros(1)
    drawn = ops.sample(logits, none, none.int(), one, none, none.long(), none.long())
    assert drawn.tolist() == [-1]


@pytest.mark.parametrize(
    ("words", "rows", "message"),
    [
        (1, [0], r"mask must have shape \[M=1, 2\]; got \[1, 1\]"),
        (2, [3], r"row must lie in \[-1, 3\)"),
        (2, [-2], r"row must lie in \[-1, 3\)"),
        (2, [0, 1], r"row must have shape \[M=1\]; got \[2\]"),
    ],
)
def test_checks(words: int, rows: list[int], message: str) -> None:
    mask = torch.zeros(1, words, dtype=torch.int32)
    with pytest.raises(ValueError, match=f"mask_logits@1: argument {message}"):
        ops.mask_logits(torch.zeros(3, 40), mask, torch.tensor(rows, dtype=torch.int32))
