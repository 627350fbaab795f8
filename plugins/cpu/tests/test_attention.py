# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""kv_write@1, attention_prefill@1, attention_decode@1 on paged caches."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch

from .support import Cache, bind, int32, make_cache, randn, reference

pytestmark = pytest.mark.usefixtures("isa")

GEOMETRIES = [  # heads, kv_heads, head_dim, page
    (9, 3, 64, 16),
    (4, 4, 16, 4),
    (8, 1, 128, 64),
    (11, 1, 16, 16),
    (32, 8, 128, 16),
    (4, 2, 80, 4),
]


def traits_of(heads: int, kv_heads: int, head_dim: int, page: int) -> dict[str, int | None]:
    return {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "page_size": page,
        "window": None,
    }


def fused_query(
    rng: torch.Generator, tokens: int, heads: int, kv_heads: int, head_dim: int
) -> torch.Tensor:
    """q as a view of a fused qkv."""
    return randn(rng, tokens, heads + 2 * kv_heads, head_dim)[:, :heads]


def finite(cache: Cache) -> tuple[torch.Tensor, torch.Tensor]:
    """Without poison: the reference multiplies weights of zero with it."""
    return cache.keys.nan_to_num(0), cache.values.nan_to_num(0)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "page"), GEOMETRIES)
@pytest.mark.parametrize("threads", [1, 2])
def test_decode(
    rng: torch.Generator, threads: int, heads: int, kv_heads: int, head_dim: int, page: int
) -> None:
    from tokenspeed_cpu import library

    library.set_threads(threads)
    lengths = [1, page - 1, page, page + 1, 64, 65, 700, 130]
    cache = make_cache(rng, lengths, kv_heads=kv_heads, head_dim=head_dim, page=page)
    order = torch.randperm(len(lengths), generator=rng)
    # A dead row of the null slot is among them.
    slots = torch.cat((order + 1, torch.tensor([0]))).int()
    lens = int32([lengths[i] for i in order.tolist()] + [0])
    q = fused_query(rng, len(slots), heads, kv_heads, head_dim)
    traits = traits_of(heads, kv_heads, head_dim, page)
    args = (cache.table, slots, lens, 0.2)
    out = bind("attention_decode@1", **traits)(q, cache.keys, cache.values, *args)
    wanted = reference("attention_decode@1", **traits)(q, *finite(cache), *args)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


def test_decode_splits_one_long_row(rng: torch.Generator) -> None:
    cache = make_cache(rng, [3001], kv_heads=1, head_dim=16, page=16)
    traits = traits_of(2, 1, 16, 16)
    args = (cache.table, int32([1]), int32([3001]), 0.25)
    q = randn(rng, 1, 2, 16) * 20  # one part holds nearly all weight
    out = bind("attention_decode@1", **traits)(q, cache.keys, cache.values, *args)
    wanted = reference("attention_decode@1", **traits)(q, *finite(cache), *args)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "page"), GEOMETRIES)
@pytest.mark.parametrize(
    "rows",  # (new tokens, cached prefix)
    [[(1, 0)], [(5, 0), (70, 0)], [(1, 130), (64, 64), (3, 61), (17, 16), (0, 9)], [(130, 3)]],
)
def test_prefill(
    rng: torch.Generator,
    heads: int,
    kv_heads: int,
    head_dim: int,
    page: int,
    rows: list[tuple[int, int]],
) -> None:
    lengths = [new + prefix for new, prefix in rows]
    cache = make_cache(rng, lengths, kv_heads=kv_heads, head_dim=head_dim, page=page)
    starts = [0, *accumulate(new for new, _ in rows)]
    q = fused_query(rng, starts[-1] + 2, heads, kv_heads, head_dim)  # two tokens without a row
    traits = traits_of(heads, kv_heads, head_dim, page)
    slots = int32(list(range(1, len(rows) + 1)))
    args = (cache.table, slots, int32(starts), int32(lengths), head_dim**-0.5)
    out = bind("attention_prefill@1", **traits)(q, cache.keys, cache.values, *args)
    wanted = reference("attention_prefill@1", **traits)(q, *finite(cache), *args)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_or_no_tokens(rows: int) -> None:
    cache = torch.zeros(2, 1, 4, 16)
    table, slots = torch.zeros(2, 1, dtype=torch.int32), int32([1] * rows)
    decode = bind("attention_decode@1", **traits_of(1, 1, 16, 4))
    prefill = bind("attention_prefill@1", **traits_of(1, 1, 16, 4))
    q = torch.ones(rows, 1, 16)
    assert (
        decode(q, cache, cache, table, slots, int32([0] * rows), 1.0).tolist() == (q * 0).tolist()
    )
    starts = int32([0] * (rows + 1))
    out = prefill(torch.ones(0, 1, 16), cache, cache, table, slots, starts, int32([0] * rows), 1.0)
    assert out.shape == (0, 1, 16)


@pytest.mark.parametrize(("page", "head_dim", "kv_heads"), [(16, 64, 3), (4, 16, 1), (64, 128, 2)])
@pytest.mark.parametrize("tokens", [0, 1, 40, 400])
def test_kv_write(
    rng: torch.Generator, page: int, head_dim: int, kv_heads: int, tokens: int
) -> None:
    lengths = [tokens // 2 + 1, tokens + 1]
    cache = make_cache(rng, lengths, kv_heads=kv_heads, head_dim=head_dim, page=page, poison=False)
    kv = randn(rng, tokens, 5 * kv_heads, head_dim)
    k, v = kv[:, kv_heads : 2 * kv_heads], kv[:, 3 * kv_heads : 4 * kv_heads]
    half = tokens // 2
    slots = int32([1] * half + [2] * (tokens - half))
    positions = int32([*range(half), *range(tokens - half)])
    traits = {"kv_heads": kv_heads, "head_dim": head_dim, "page_size": page}
    expected = Cache(cache.keys.clone(), cache.values.clone(), cache.table)
    for op, c in ((bind, cache), (reference, expected)):
        op("kv_write@1", **traits)(k, v, c.keys, c.values, c.table, slots, positions)
    assert torch.equal(cache.keys, expected.keys)
    assert torch.equal(cache.values, expected.values)


def test_padded_rows_touch_the_null_page_only(rng: torch.Generator) -> None:
    cache = make_cache(rng, [9], kv_heads=1, head_dim=16, page=4, poison=False)
    before = cache.keys.clone()
    k = randn(rng, 3, 1, 16)
    write = bind("kv_write@1", kv_heads=1, head_dim=16, page_size=4)
    sentinel = cache.table.shape[0] - 1
    write(
        k,
        k,
        cache.keys,
        cache.values,
        cache.table,
        int32([0, sentinel, sentinel]),
        int32([0, 5, 10_000]),
    )
    assert torch.equal(cache.keys[1:], before[1:])


def test_ids_out_of_range_lead_to_the_null_page(rng: torch.Generator) -> None:
    cache = torch.zeros(3, 1, 4, 16)
    table = int32([[0, 0], [99, -7], [0, 0]])
    decode = bind("attention_decode@1", **traits_of(1, 1, 16, 4))
    out = decode(
        randn(rng, 2, 1, 16), cache, cache, table, int32([1, 77]), int32([8, 1_000_000]), 1.0
    )
    assert out.eq(0).all()


def test_a_nan_stays_in_its_row(rng: torch.Generator) -> None:
    cache = make_cache(rng, [20, 20], kv_heads=1, head_dim=16, page=4)
    cache.keys[int(cache.table[1, 2])] = float("nan")
    traits = traits_of(2, 1, 16, 4)
    q = randn(rng, 2, 2, 16)
    args = (cache.table, int32([1, 2]))
    out = bind("attention_decode@1", **traits)(
        q, cache.keys, cache.values, *args, int32([20, 20]), 1.0
    )
    assert out[0].isnan().all()
    assert out[1].isfinite().all()
    out = bind("attention_prefill@1", **traits)(
        q, cache.keys, cache.values, *args, int32([0, 1, 2]), int32([20, 20]), 1.0
    )
    assert out[0].isnan().all()
    assert out[1].isfinite().all()
