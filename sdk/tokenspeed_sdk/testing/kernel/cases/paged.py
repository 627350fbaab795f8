# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Cases of the ops on paged memory: kv_write, attention_prefill, attention_decode and _verify.

The pages of a row are shuffled over a slab that several layers share. What no row owns is NaN: the
null page, a page that every unused entry of the page table points to, what lies behind the last
token of a page, and the queries that belong to no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

import torch

from tokenspeed_sdk.contracts.kernel import Trait
from tokenspeed_sdk.testing.kernel.cases.base import NAN, Call, Case, Grid, Inputs

LAYERS = 2
"""Layers that share a slab; the last is used, so that pages lie apart."""

Heads = tuple[int, int, int]


@dataclass(frozen=True)
class Pool:
    """Paged KV of some rows.

    Attributes:
        keys, values: [P, Hkv, page, D], views of a slab.
        table: [S2, M] int32; unused entries of a slot in use point to a page of NaN.
        row_slot, kv_len: [R] int32. Rows without tokens are dead: in slot 0 or the last one.
    """

    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor
    row_slot: torch.Tensor
    kv_len: torch.Tensor

    @property
    def cache(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys, values, table and row_slot, in the order in which attention takes them."""
        return self.keys, self.values, self.table, self.row_slot


def make_pool(
    inputs: Inputs, lengths: Sequence[int], kv_heads: int, head_dim: int, page: int
) -> Pool:
    """A pool of rows with ``lengths`` tokens, in slots and pages in random order."""
    counts = [-(-length // page) for length in lengths]
    nobodys = sum(counts) + 1
    slab = inputs.memory(nobodys + 1, LAYERS, 2, kv_heads, page, head_dim)
    used = slab[:, LAYERS - 1]
    sentinel = len(lengths) + 1
    table = torch.zeros(sentinel + 1, max(counts, default=0) + 2, dtype=torch.int32)
    table[1:sentinel] = nobodys
    pages = torch.tensor(inputs.order(sum(counts)), dtype=torch.int32) + 1
    slots = [place + 1 for place in inputs.order(len(lengths))]
    starts = accumulate(counts, initial=0)
    for row, (length, count, start) in enumerate(zip(lengths, counts, starts, strict=False)):
        if not length:
            slots[row] = 0 if row % 2 else sentinel
            continue
        mine = pages[start : start + count]
        table[slots[row], :count] = mine
        values = inputs.random(count, 2, kv_heads, page, head_dim)
        if length % page:
            values[-1, :, :, length % page :] = NAN
        used[mine.long().to(used.device)] = values
    return Pool(
        used[:, 0],
        used[:, 1],
        inputs.place(table.to(inputs.device), gap=1),
        inputs.ints(slots),
        inputs.ints(list(lengths)),
    )


def kv_write(grid: Grid) -> Iterator[Case]:
    """Rows that write over a page's end, and padded tokens that may land in the null page."""

    def case(heads: Heads, page: int, news: tuple[int, ...]) -> Case:
        query_heads, kv_heads, head_dim = heads
        padded = 2 if news else 0

        def make(inputs: Inputs) -> Call:
            pool = make_pool(inputs, [page - 1 + new for new in news], kv_heads, head_dim, page)
            tokens = sum(news) + padded
            _, k, v = inputs.fused(tokens, query_heads, kv_heads, kv_heads, head_dim=head_dim)
            slots = pool.row_slot.tolist()
            token_slot = [slot for slot, new in zip(slots, news, strict=True) for _ in range(new)]
            positions = [page - 1 + i for new in news for i in range(new)]
            padding = [0, pool.table.shape[0] - 1][:padded]
            ints = inputs.ints(token_slot + padding), inputs.ints(positions + [0, page][:padded])
            cache = (pool.keys, pool.values, pool.table)
            return Call((k, v, *cache, *ints), free=((2, 0), (3, 0)))  # the null page

        traits = {"kv_heads": kv_heads, "head_dim": head_dim, "page_size": page}
        rows = "no_tokens" if not news else "rows" + "_".join(map(str, news))
        name = f"{rows}-{kv_heads}x{head_dim}-page{page}"
        return Case(name, "kv_write@1", traits, make, sum(news) + padded)

    yield case(grid.heads[0], grid.page_sizes[0], ())
    yield case(grid.heads[0], grid.page_sizes[0], (1,))
    for heads, page in product(grid.heads, grid.page_sizes):
        yield case(heads, page, (1, 2, page + 2, 3 * page))
    if grid.most_rows:
        yield case(grid.heads[0], grid.page_sizes[0], (1, grid.most_rows))


def attention_decode(grid: Grid) -> Iterator[Case]:
    """Lengths around the end of a page, alone and in one batch with dead rows."""

    def case(
        name: str, lengths: Sequence[int], heads: Heads, page: int, window: int | None
    ) -> Case:
        query_heads, kv_heads, head_dim = heads

        def make(inputs: Inputs) -> Call:
            pool = make_pool(inputs, lengths, kv_heads, head_dim, page)
            sizes = (query_heads, kv_heads, kv_heads)
            q, *_ = inputs.fused(len(lengths), *sizes, head_dim=head_dim)
            q[pool.kv_len == 0] = NAN
            return Call((q, *pool.cache, pool.kv_len, head_dim**-0.5))

        traits = _traits(heads, page, window)
        name = f"{name}-{_label(heads, page, window)}"
        return Case(name, "attention_decode@1", traits, make, len(lengths))

    first, page = grid.heads[0], grid.page_sizes[0]
    yield case("no_rows", [], first, page, None)
    yield case("dead_rows", [0, 0], first, page, None)
    for length in _around(page):
        yield case(f"length{length}", [length], first, page, None)
    for length in grid.lengths:
        yield case(f"length{length}", [length], grid.heads[-1], page, None)
    for heads, page, window in _shapes(grid):
        lengths = [0, *_around(page), 0, *grid.lengths]
        yield case("batch", lengths, heads, page, window)


QUERIES = 4
"""Rows of the longest run."""


def attention_verify(grid: Grid) -> Iterator[Case]:
    """(rows, tokens that the last one sees) of runs: over the end of a page, from the first token
    on, behind rows of other slots that are as long, and of one row."""

    def case(
        name: str, runs: Sequence[tuple[int, int]], heads: Heads, page: int, window: int | None
    ) -> Case:
        query_heads, kv_heads, head_dim = heads
        counts = torch.tensor([count for count, _ in runs], dtype=torch.int64)
        seen = [n for count, last in runs for n in range(last - count + 1, last + 1)]

        def make(inputs: Inputs) -> Call:
            pool = make_pool(inputs, [last for _, last in runs], kv_heads, head_dim, page)
            sizes = (query_heads, kv_heads, kv_heads)
            q, *_ = inputs.fused(len(seen), *sizes, head_dim=head_dim)
            kv_len = inputs.ints(seen)
            q[kv_len == 0] = NAN
            slots = inputs.ints(pool.row_slot.cpu().repeat_interleave(counts).tolist())
            return Call((q, *pool.cache[:3], slots, kv_len, head_dim**-0.5))

        traits = {**_traits(heads, page, window), "queries": QUERIES}
        name = f"{name}-{_label(heads, page, window)}"
        return Case(name, "attention_verify@1", traits, make, len(seen))

    first, page = grid.heads[0], grid.page_sizes[0]
    yield case("no_rows", [], first, page, None)
    yield case("dead_rows", [(1, 0), (1, 0)], first, page, None)
    for length in _around(page):
        yield case(f"run{length}", [(min(length, QUERIES), length)], first, page, None)
    for length in grid.lengths:
        yield case(f"run{length}", [(QUERIES, length)], grid.heads[-1], page, None)
    for heads, page, window in _shapes(grid):
        short = [(1, page), (1, page + 1), (2, page + 2), (1, 0), (QUERIES, page + 2), (1, 0)]
        long = [(2 + i % 2, length) for i, length in enumerate(grid.lengths) if length > QUERIES]
        yield case("batch", [*short, *long, (QUERIES, QUERIES)], heads, page, window)


def attention_prefill(grid: Grid) -> Iterator[Case]:
    """(new, all) tokens of rows: from the start, behind a prefix, none, over the end of a page."""

    def case(
        name: str, rows: Sequence[tuple[int, int]], heads: Heads, page: int, window: int | None
    ) -> Case:
        query_heads, kv_heads, head_dim = heads
        starts = [*accumulate((new for new, _ in rows), initial=0)]
        tokens = starts[-1] + (2 if rows else 0)  # two behind the last row

        def make(inputs: Inputs) -> Call:
            pool = make_pool(inputs, [length for _, length in rows], kv_heads, head_dim, page)
            q, *_ = inputs.fused(tokens, query_heads, kv_heads, kv_heads, head_dim=head_dim)
            q[starts[-1] :] = NAN
            query_start = inputs.ints(starts)
            return Call((q, *pool.cache, query_start, pool.kv_len, head_dim**-0.5))

        traits = _traits(heads, page, window)
        name = f"{name}-{_label(heads, page, window)}"
        return Case(name, "attention_prefill@1", traits, make, tokens)

    first, page = grid.heads[0], grid.page_sizes[0]
    yield case("no_rows", [], first, page, None)
    yield case("no_new_tokens", [(0, 0), (0, page)], first, page, None)
    for length in _around(page):
        yield case(f"new{length}", [(length, length)], first, page, None)
    for length in grid.lengths:
        new = min(length // 2, 512)
        yield case(f"new{new}_of_{length}", [(new, length)], grid.heads[-1], page, None)
    if most := grid.most_rows:
        yield case(f"new{most}", [(most, most)], first, page, None)
    for heads, page, window in _shapes(grid):
        whole = [(length, length) for length in _around(page)]
        behind = [(1, page + 1), (2, page + 1), (0, 3), (0, 0), (page, 2 * page), (5, 3 * page)]
        longer = [(min(67, length), length) for length in grid.lengths[:2]]
        yield case("batch", whole + behind + longer, heads, page, window)


def _shapes(grid: Grid) -> Iterator[tuple[Heads, int, int | None]]:
    """All heads with all pages; further windows with the first of both."""
    for heads, page in product(grid.heads, grid.page_sizes):
        yield heads, page, grid.windows[0]
    for window in grid.windows[1:]:
        yield grid.heads[0], grid.page_sizes[0], window


def _around(page: int) -> list[int]:
    """One token, lengths around the end of a page, and several pages."""
    return [1, page - 1, page, page + 1, 3 * page + 1]


def _traits(heads: Heads, page: int, window: int | None) -> dict[str, Trait]:
    query_heads, kv_heads, head_dim = heads
    return {
        "heads": query_heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "page_size": page,
        "window": window,
    }


def _label(heads: Heads, page: int, window: int | None) -> str:
    query_heads, kv_heads, head_dim = heads
    behind = "" if window is None else f"-window{window}"
    return f"{query_heads}:{kv_heads}x{head_dim}-page{page}{behind}"
