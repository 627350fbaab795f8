# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Attention and kv_write: indices that lead nowhere, values that are not numbers, few queries."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from tokenspeed_sdk.testing import Inputs
from tokenspeed_sdk.testing.kernel.cases.paged import make_pool

from .support import bind, int32, randn

pytestmark = pytest.mark.usefixtures("isa")

TRAITS = {"heads": 1, "kv_heads": 1, "head_dim": 16, "page_size": 4, "window": None}
MOST_FEW = 16
"""kFewQueries."""


def test_padded_rows_touch_the_null_page_only(rng: torch.Generator) -> None:
    cache = torch.zeros(4, 1, 4, 16)
    k = randn(rng, 3, 1, 16)
    write = bind("kv_write@1", kv_heads=1, head_dim=16, page_size=4)
    table = int32([[0, 0, 0], [1, 2, 3], [0, 0, 0]])
    write(k, k, cache, cache, table, int32([0, 2, 2]), int32([0, 5, 10_000]))
    assert cache[1:].eq(0).all()


def test_ids_out_of_range_lead_to_the_null_page(rng: torch.Generator) -> None:
    cache = torch.zeros(3, 1, 4, 16)
    table = int32([[0, 0], [99, -7], [0, 0]])
    decode = bind("attention_decode@1", **TRAITS)
    q = randn(rng, 2, 1, 16)
    out = decode(q, cache, cache, table, int32([1, 77]), int32([8, 1_000_000]), 1.0)
    assert out.eq(0).all()


def test_a_nan_stays_in_its_row() -> None:
    inputs = Inputs(1, torch.float32)
    pool = make_pool(inputs, [20, 20], 1, 16, 4)
    pool.keys[int(pool.table[pool.row_slot[0], 2])] = float("nan")
    q = inputs.random(2, 2, 16)
    traits = TRAITS | {"heads": 2}
    decoded = bind("attention_decode@1", **traits)(q, *pool.cache, pool.kv_len, 1.0)
    prefill = bind("attention_prefill@1", **traits)
    prefilled = prefill(q, *pool.cache, int32([0, 1, 2]), pool.kv_len, 1.0)
    for out in (decoded, prefilled):
        assert out[0].isnan().all()
        assert out[1].isfinite().all()


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (3, 1), (8, 2), (9, 1)])
def test_a_few_queries_have_the_bits_that_each_has_alone(heads: int, kv_heads: int) -> None:
    """A token with guesses behind it answers as in a step of its own, whatever is beside it."""
    inputs = Inputs(heads, torch.float32)
    counts, lengths = [1, 4, MOST_FEW, 3, 40, 2], [1, 300, 130, 3, 200, 513]
    pool = make_pool(inputs, lengths, kv_heads, 16, 4)
    q = inputs.random(sum(counts), heads, 16)
    traits = TRAITS | {"heads": heads, "kv_heads": kv_heads}
    starts = [0, *accumulate(counts)]
    together = bind("attention_prefill@1", **traits)(
        q, *pool.cache, int32(starts), pool.kv_len, 0.25
    )
    decode = bind("attention_decode@1", **traits)
    for row, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        for i in range(count if count <= MOST_FEW else 0):
            at = starts[row] + i
            alone = decode(
                q[at : at + 1],
                *pool.cache[:3],
                pool.row_slot[row : row + 1],
                int32([length - count + i + 1]),
                0.25,
            )
            assert torch.equal(together[at], alone[0]), (row, i)
