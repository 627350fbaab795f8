# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""logprobs@1: what it writes, in which order, and what it leaves alone."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenspeed_sdk import ops

K = 4


def found(logits: list[list[float]], token: list[int], wanted: list[int]) -> tuple[list, list]:
    """Ids and values of slots 0 to E + 1; row e is slot e + 1's."""
    rows = len(token)
    ids = torch.full((rows + 2, K), -7, dtype=torch.int32)
    values = torch.full((rows + 2, K), 7.0)
    asks = torch.tensor([0, *wanted, 0], dtype=torch.int32)[:, None]
    slots = torch.arange(1, rows + 1)
    ops.logprobs(torch.tensor(logits), torch.tensor(token), slots, asks, ids, values)
    return ids.tolist(), values.tolist()


def test_entries() -> None:
    half, eighth = math.log(0.5), math.log(0.125)
    row = [eighth, half, eighth, math.log(0.25)]
    ids, values = found([row] * 4, [0, 3, 2, -1], [4, 1, 0, 4])
    assert ids[1] == [0, 1, 3, 0]
    torch.testing.assert_close(values[1], [eighth, half, math.log(0.25), eighth])
    assert ids[2] == [3, -7, -7, -7]
    untouched = [[-7] * K, [7.0] * K]
    assert [[ids[s], values[s]] for s in (0, 3, 4, 5)] == [untouched] * 4


def test_a_vocabulary_smaller_than_what_is_wanted() -> None:
    ids, values = found([[1.0, 1.0]], [1], [4])
    assert ids[1] == [1, 0, 1, -7]
    torch.testing.assert_close(values[1], [-math.log(2)] * 3 + [7.0])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=K, max_size=30), st.integers(0, 29))
def test_is_torchs(logits: list[int], token: int) -> None:
    token %= len(logits)
    ids, values = found([[float(x) for x in logits]], [token], [K])
    right = torch.tensor(logits, dtype=torch.float64).log_softmax(0)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    assert ids[1] == [token, *order[: K - 1]]
    torch.testing.assert_close(values[1], right[ids[1]].tolist(), rtol=1e-6, atol=1e-6)
