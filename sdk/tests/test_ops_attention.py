# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""References of kv_write and attention against torch's SDPA on plain, unpaged keys and values."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_sdk import ops

DOUBLE, I32 = torch.float64, torch.int32
HEADS, KV_HEADS, HEAD_DIM, PAGES = 4, 2, 8, 12
SLOTS, WIDTH = 5, 5


class Paged:
    """Keys and values of some slots, once plain and once in shuffled pages."""

    def __init__(self, lengths: dict[int, int], page: int) -> None:
        shape = (PAGES + 1, KV_HEADS, page, HEAD_DIM)
        self.k_cache = torch.full(shape, 1e4, dtype=DOUBLE)
        self.v_cache = torch.full(shape, 1e4, dtype=DOUBLE)
        self.table = torch.zeros(SLOTS, WIDTH, dtype=I32)
        self.plain = {}
        free = iter((torch.randperm(PAGES) + 1).tolist())
        for slot, length in lengths.items():
            for n in range(-(-length // page)):
                self.table[slot, n] = next(free)
            kv = torch.randn(2, length, KV_HEADS, HEAD_DIM, dtype=DOUBLE)
            self.plain[slot] = kv
            where = torch.full((length,), slot, dtype=I32)
            positions = torch.arange(length, dtype=I32)
            order = torch.randperm(length)
            ops.kv_write(
                kv[0, order],
                kv[1, order],
                self.k_cache,
                self.v_cache,
                self.table,
                where,
                positions[order],
            )

    def expected(self, q: torch.Tensor, slot: int, window: int | None) -> torch.Tensor:
        """SDPA of the last queries of a slot: [n, heads, head_dim]."""
        k, v = self.plain[slot].transpose(1, 2)
        j = torch.arange(k.shape[1])
        i = j[len(j) - q.shape[0] :, None]
        mask = (j <= i) if window is None else (j <= i) & (j > i - window)
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k[None], v[None], attn_mask=mask, scale=0.3, enable_gqa=True
        )
        return out[0].transpose(0, 1)


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_prefill(page: int, window: int | None) -> None:
    lengths, counts = ({2: 5, 1: 3} if page == 1 else {2: 13, 1: 6}), {2: 4, 1: 3}
    cache = Paged(lengths, page)
    q = torch.randn(sum(counts.values()) + 2, HEADS, HEAD_DIM, dtype=DOUBLE)
    out = ops.attention_prefill(
        q,
        cache.k_cache,
        cache.v_cache,
        cache.table,
        torch.tensor([2, 1], dtype=I32),
        torch.tensor([0, 4, 7], dtype=I32),
        torch.tensor([lengths[2], lengths[1]], dtype=I32),
        0.3,
        window=window,
    )
    torch.testing.assert_close(out[:4], cache.expected(q[:4], 2, window))
    torch.testing.assert_close(out[4:7], cache.expected(q[4:7], 1, window))
    assert not out[7:].any(), "tokens without a row give zeros"


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("window", [None, 3])
def test_decode(page: int, window: int | None) -> None:
    cache = Paged({3: 5, 1: 1}, page)
    q = torch.randn(3, HEADS, HEAD_DIM, dtype=DOUBLE)
    out = ops.attention_decode(
        q,
        cache.k_cache,
        cache.v_cache,
        cache.table,
        torch.tensor([3, SLOTS - 1, 1], dtype=I32),
        torch.tensor([5, 0, 1], dtype=I32),
        0.3,
        window=window,
    )
    torch.testing.assert_close(out[:1], cache.expected(q[:1], 3, window))
    torch.testing.assert_close(out[2:], cache.expected(q[2:], 1, window))
    assert not out[1].any(), "a dead row gives zeros"


@pytest.mark.parametrize("window", [None, 3])
def test_a_run_is_a_prompts_last_tokens(window: int | None) -> None:
    """Three rows of one slot, two of another: what prefill gives of five new tokens."""
    cache = Paged({3: 5, 1: 2}, 4)
    q = torch.randn(5, HEADS, HEAD_DIM, dtype=DOUBLE)
    pages = (cache.k_cache, cache.v_cache, cache.table)
    slots = [torch.tensor(each, dtype=I32) for each in ([3, 3, 3, 1, 1], [3, 1])]
    starts, lengths = (torch.tensor(each, dtype=I32) for each in ([0, 3, 5], [5, 2]))
    seen = torch.tensor([3, 4, 5, 1, 2], dtype=I32)
    out = ops.attention_verify(q, *pages, slots[0], seen, 0.3, window=window)
    expected = ops.attention_prefill(q, *pages, slots[1], starts, lengths, 0.3, window=window)
    torch.testing.assert_close(out, expected)


def test_one_token_attends_to_itself() -> None:
    cache = Paged({1: 1}, 4)
    q = torch.randn(1, HEADS, HEAD_DIM, dtype=DOUBLE)
    one = torch.ones(1, dtype=I32)
    out = ops.attention_decode(
        q, cache.k_cache, cache.v_cache, cache.table, one, one, 0.3, window=None
    )
    value = cache.plain[1][1].repeat_interleave(HEADS // KV_HEADS, 1)
    torch.testing.assert_close(out, value)


def test_kv_write_touches_nothing_else() -> None:
    k_cache, v_cache = torch.zeros(2, 3, KV_HEADS, 4, HEAD_DIM, dtype=DOUBLE).unbind(0)
    k, v = torch.randn(2, 1, KV_HEADS, HEAD_DIM, dtype=DOUBLE)
    table = torch.tensor([[0, 0], [1, 2]], dtype=I32)
    slot, position = torch.tensor([1], dtype=I32), torch.tensor([6], dtype=I32)
    ops.kv_write(k, v, k_cache, v_cache, table, slot, position)
    assert torch.equal(k_cache[2, :, 2], k[0])
    assert torch.equal(v_cache[2, :, 2], v[0])
    assert k_cache.count_nonzero() == v_cache.count_nonzero() == KV_HEADS * HEAD_DIM
