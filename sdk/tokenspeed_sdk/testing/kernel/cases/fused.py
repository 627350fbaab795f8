# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Cases of the ops that are several in one launch: add_norm_linear and rope_kv_write."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from tokenspeed_sdk.contracts.kernel import Trait
from tokenspeed_sdk.testing.kernel.cases.base import NAN, Call, Case, Grid, Inputs
from tokenspeed_sdk.testing.kernel.cases.paged import Heads, make_pool
from tokenspeed_sdk.testing.kernel.cases.rows import EPS, GAPS

FEW = (1, 2, 4, 8, 16, 32)
"""Rows that kernels of few rows are bound for, beside those of the grid."""


def add_norm_linear(grid: Grid) -> Iterator[Case]:
    """All rows with the last matrix, the others with few and with most; every kind of site with
    several rows. Gated only where the output is even. The memory for the sum holds NaN."""

    def case(rows: int, n: int, k: int, index: int) -> Case:
        gated, bias, gap = n % 2 == 0 and index % 2 == 0, index // 2 % 2 == 0, GAPS[index % 2]

        def make(inputs: Inputs) -> Call:
            x, residual = inputs.normal(rows, k, gap=gap), inputs.normal(rows, k, gap=GAPS[1] - gap)
            summed = inputs.place(torch.full_like(residual, NAN), gap)
            weight = inputs.place(inputs.random(n, k) * 2 * k**-0.5, gap)
            biases = inputs.normal(n) if bias else None
            return Call((x, residual, summed, _norm(inputs, k), weight, biases, EPS))

        words = ["gated"] * gated + ["bias"] * bias + ["apart"] * bool(gap)
        name = "-".join((f"rows{rows}", f"{n}x{k}", *words))
        traits: dict[str, Trait] = {"n": n, "k": k, "bias": bias, "gated": gated}
        return Case(name, "add_norm_linear@1", traits, make, rows)

    *others, last = grid.matrices
    rows = sorted({*grid.rows, *FEW})
    sizes = [*product(rows, (last,)), *product((5, rows[-1]), others)]
    kinds = product((3, 7, 20), grid.matrices[:1], range(4))
    for index, (count, (n, k)) in enumerate(sizes):
        yield case(count, n, k, index)
    for count, (n, k), index in kinds:
        yield case(count, n, k, index)


def rope_kv_write(grid: Grid) -> Iterator[Case]:
    """Heads of one projection: with norms or not, whole and half heads, both layouts of pairs.

    Rows write over a page's end; two padded tokens may land in the null page.
    """

    def case(
        heads: Heads, page: int, news: tuple[int, ...], parts: int, interleaved: bool, norm: bool
    ) -> Case:
        query_heads, kv_heads, head_dim = heads
        rotary, padded = head_dim // parts, 2 if news else 0
        tokens = sum(news) + padded

        def make(inputs: Inputs) -> Call:
            pool = make_pool(inputs, [page - 1 + new for new in news], kv_heads, head_dim, page)
            q, k, v = inputs.fused(tokens, query_heads, kv_heads, kv_heads, head_dim=head_dim)
            slots = zip(pool.row_slot.tolist(), news, strict=True)
            token_slot = [slot for slot, new in slots for _ in range(new)]
            token_slot += [0, pool.table.shape[0] - 1][:padded]
            positions = [page - 1 + i for new in news for i in range(new)] + [0, page][:padded]
            angles = inputs.random(max(positions, default=0) + 1, rotary // 2, dtype=torch.float32)
            cos_sin = inputs.place(torch.cat((angles.cos(), angles.sin()), dim=1))
            weights = [_norm(inputs, head_dim) if norm else None for _ in range(2)]
            cache = (pool.keys, pool.values, pool.table)
            args = (q, k, v, inputs.ints(positions), cos_sin, *cache, inputs.ints(token_slot))
            return Call((*args, *weights, EPS), free=((5, 0), (6, 0)))  # the null page

        traits: dict[str, Trait] = {
            "heads": query_heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "page_size": page,
            "rotary": rotary,
            "interleaved": interleaved,
            "head_norm": norm,
        }
        rows = f"batch{len(news)}" if set(news) == {1} else "rows" + "_".join(map(str, news))
        rows = rows if news else "no_tokens"
        layout = ("interleaved" if interleaved else "halves") + str(rotary)
        name = f"{rows}-{query_heads}:{kv_heads}x{head_dim}-page{page}-{layout}"
        return Case(name + "-norm" * norm, "rope_kv_write@1", traits, make, tokens)

    first, page = grid.heads[0], grid.page_sizes[0]
    for norm in (False, True):
        for news in ((), (1,), (1, 1, 1, 1), (1,) * 30):
            yield case(first, page, news, 1, False, norm)
        if grid.most_rows:
            yield case(first, page, (1, grid.most_rows), 1, False, norm)
    news = (1, 2, page + 2, 3 * page)
    for index, (heads, size) in enumerate(product(grid.heads, grid.page_sizes)):
        yield case(heads, size, news, 1, False, norm=index % 2 == 0)
    for parts, interleaved in ((2, False), (1, True), (2, True)):
        yield case(grid.heads[-1], page, news, parts, interleaved, norm=parts == 2)


def _norm(inputs: Inputs, width: int) -> torch.Tensor:
    """Weights of a norm: around 1, each its own."""
    return inputs.place(1 + inputs.random(width) / 4)
