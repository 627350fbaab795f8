# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Cases of the ops on rows: embedding, gather_rows, linear, norms, silu_and_mul, rope."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TypeVar

import torch

from tokenspeed_sdk.testing.kernel.cases.base import Call, Case, Grid, Inputs

Item = TypeVar("Item")

EPS = 0.1
"""Large enough that a kernel with another one, or one in the wrong place, is found out."""

GAPS = (0, 3)
"""Rows side by side, and rows apart that begin at odd addresses."""


def embedding(grid: Grid) -> Iterator[Case]:
    """Ids that repeat, and both ends of the table."""

    def case(rows: int, vocab: int, hidden: int, gap: int) -> Case:
        def make(inputs: Inputs) -> Call:
            ids = inputs.integers(0, vocab, rows, dtype=torch.int64)
            ids[:1], ids[1:2] = vocab - 1, 0
            return Call((ids, inputs.normal(vocab, hidden, gap=gap)))

        name = f"rows{rows}-{vocab}x{hidden}{_apart(gap)}"
        return Case(name, "embedding@1", {"vocab": vocab, "hidden": hidden}, make, rows)

    for (rows, table), gap in _with_gaps(_sizes(grid, grid.tables)):
        yield case(rows, *table, gap)


def gather_rows(grid: Grid) -> Iterator[Case]:
    """Rows in any order, some twice, some never."""

    def case(rows: int, width: int, gap: int) -> Case:
        def make(inputs: Inputs) -> Call:
            index = inputs.integers(0, rows + 3, rows, dtype=torch.int64)
            index[:1] = rows + 2
            return Call((inputs.normal(rows + 3, width, gap=gap), index))

        return Case(f"rows{rows}-{width}{_apart(gap)}", "gather_rows@1", {}, make, rows)

    for (rows, width), gap in _with_gaps(_sizes(grid, grid.widths)):
        yield case(rows, width, gap)


def linear(grid: Grid) -> Iterator[Case]:
    """With and without a bias: both with the last rows and the first matrix."""

    def case(rows: int, n: int, k: int, bias: bool, gap: int) -> Case:
        def make(inputs: Inputs) -> Call:
            x, weight = inputs.normal(rows, k, gap=gap), inputs.normal(n, k, gap=gap)
            return Call((x, weight, inputs.normal(n) if bias else None))

        name = f"rows{rows}-{n}x{k}{'-bias' if bias else ''}{_apart(gap)}"
        return Case(name, "linear@1", {"n": n, "k": k, "bias": bias}, make, rows)

    for index, (rows, (n, k)) in enumerate(_sizes(grid, grid.matrices)):
        yield case(rows, n, k, bias=index % 2 == 0, gap=GAPS[index // 2 % 2])
    odd = (len(grid.rows) - 1) * len(grid.matrices) % 2 == 1
    yield case(grid.rows[-1], *grid.matrices[0], bias=odd, gap=GAPS[0])


def rms_norm(grid: Grid) -> Iterator[Case]:
    """Rows, and heads that are a view of a wider projection."""

    def case(rows: int, hidden: int, gap: int) -> Case:
        def make(inputs: Inputs) -> Call:
            return Call((inputs.normal(rows, hidden, gap=gap), inputs.normal(hidden), EPS))

        name = f"rows{rows}-{hidden}{_apart(gap)}"
        return Case(name, "rms_norm@1", {"hidden": hidden}, make, rows)

    def of_heads(rows: int, heads: int, kv_heads: int, head_dim: int) -> Case:
        def make(inputs: Inputs) -> Call:
            _, k, _ = inputs.fused(rows, heads, kv_heads, kv_heads, head_dim=head_dim)
            return Call((k, inputs.normal(head_dim), EPS))

        name = f"rows{rows}-{kv_heads}_of_{heads + 2 * kv_heads}_heads-{head_dim}"
        return Case(name, "rms_norm@1", {"hidden": head_dim}, make, rows)

    for (rows, width), gap in _with_gaps(_sizes(grid, grid.widths)):
        yield case(rows, width, gap)
    for geometry in grid.heads:
        yield of_heads(grid.rows[-1], *geometry)


def add_rms_norm(grid: Grid) -> Iterator[Case]:
    """The row and the residual with strides of their own."""

    def case(rows: int, hidden: int, gap: int) -> Case:
        def make(inputs: Inputs) -> Call:
            x = inputs.normal(rows, hidden, gap=GAPS[1] - gap)
            return Call((x, inputs.normal(rows, hidden, gap=gap), inputs.normal(hidden), EPS))

        name = f"rows{rows}-{hidden}{_apart(gap)}"
        return Case(name, "add_rms_norm@1", {"hidden": hidden}, make, rows)

    for (rows, width), gap in _with_gaps(_sizes(grid, grid.widths)):
        yield case(rows, width, gap)


def silu_and_mul(grid: Grid) -> Iterator[Case]:
    """Gates far enough from 0 on both sides that an activation without its tails shows."""

    def case(rows: int, inter: int, gap: int) -> Case:
        def make(inputs: Inputs) -> Call:
            return Call((inputs.place(inputs.random(rows, 2 * inter) * 5, gap),))

        name = f"rows{rows}-{inter}{_apart(gap)}"
        return Case(name, "silu_and_mul@1", {"inter": inter}, make, rows)

    for (rows, width), gap in _with_gaps(_sizes(grid, grid.widths)):
        yield case(rows, width, gap)


def rope(grid: Grid) -> Iterator[Case]:
    """q and k as views of one projection; whole and half heads; both layouts of pairs."""

    def case(rows: int, geometry: tuple[int, int, int], parts: int, interleaved: bool) -> Case:
        heads, kv_heads, head_dim = geometry
        rotary, longest = head_dim // parts, 2 * rows + 40

        def make(inputs: Inputs) -> Call:
            q, k, _ = inputs.fused(rows, heads, kv_heads, kv_heads, head_dim=head_dim)
            positions = inputs.integers(0, longest, rows)
            positions[:1], positions[1:2] = longest - 1, 0
            angles = inputs.random(longest, rotary // 2, dtype=torch.float32)
            cos_sin = inputs.place(torch.cat((angles.cos(), angles.sin()), dim=1))
            return Call((q, k, positions, cos_sin))

        traits = {"head_dim": head_dim, "rotary": rotary, "interleaved": interleaved}
        layout = "interleaved" if interleaved else "halves"
        name = f"rows{rows}-{heads}:{kv_heads}x{head_dim}-{layout}{rotary}"
        return Case(name, "rope@1", traits, make, rows)

    for rows in grid.rows[:-1]:
        yield case(rows, grid.heads[0], 1, interleaved=False)
    if grid.most_rows:
        yield case(grid.most_rows, grid.heads[0], 1, interleaved=False)
    for geometry, parts, interleaved in product(grid.heads, (1, 2), (False, True)):
        yield case(grid.rows[-1], geometry, parts, interleaved)


def _sizes(grid: Grid, sizes: Sequence[Item]) -> Iterator[tuple[int, Item]]:
    """All rows with all sizes, and the most rows with the last size."""
    yield from product(grid.rows, sizes)
    if grid.most_rows:
        yield grid.most_rows, sizes[-1]


def _with_gaps(items: Iterable[Item]) -> Iterator[tuple[Item, int]]:
    return ((item, GAPS[index % 2]) for index, item in enumerate(items))


def _apart(gap: int) -> str:
    return "-apart" if gap else ""
