# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Cases of the ops on the engine's own state: mask_logits, sample, page_table_update. All exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tokenspeed_sdk.testing.kernel.cases.base import NAN, Call, Case, Grid, Inputs

INFINITY = float("inf")

Filter = tuple[float, int, float, float]

FILTERS: tuple[Filter, ...] = (
    # temperature, top_k, top_p, min_p
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.3, 0, 1.0, 0.0),
    (0.7, 20, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (1.0, 700, 1.0, 0.0),
    (0.8, 0, 0.9, 0.0),
    (3.0, 0, 0.97, 0.0),
    (1.0, 0, 0.0, 0.0),
    (1.2, 50, 0.8, 0.0),
    (1.0, 0, 1.0, 0.1),
    (1.5, 40, 0.95, 0.05),
    (1.0, 0, 1.0, 2.0),
    (5.0, 0, 0.999, 0.0),
    (1e-6, 10, 0.5, 0.0),
)
"""Every filter, and mixtures of them."""


def sample_args(
    inputs: Inputs, logits: torch.Tensor, filters: Sequence[Filter]
) -> tuple[torch.Tensor, ...]:
    """Arguments of sample@1 for rows of given logits [E, V] and filters, any 64-bit seeds."""
    rows = len(filters)
    temperature, top_k, top_p, min_p = zip(*filters, strict=True) if rows else ((), (), (), ())
    seed = inputs.integers(-(2**63), 2**63 - 1, rows, dtype=torch.int64)
    position = inputs.integers(0, 2**34, rows, dtype=torch.int64)
    columns = inputs.floats(temperature), inputs.ints(top_k), inputs.floats(top_p)
    return (logits, *columns, inputs.floats(min_p), seed, position)


def sample(grid: Grid) -> Iterator[Case]:
    """Draws whose logits are spread, tied, masked, or define no distribution."""

    def case(kind: str, vocab: int, filters: Sequence[Filter], gap: int = 3) -> Case:
        def make(inputs: Inputs) -> Call:
            logits = inputs.random(len(filters), vocab, dtype=torch.float32) * 3
            if kind == "tied":
                logits = logits.round()
                masked = inputs.integers(0, 10, len(filters), vocab) < 9
                masked[:, vocab // 2] = False
                logits[masked] = -INFINITY
            if kind == "without_maximum":
                for row, worst in enumerate((NAN, INFINITY)):
                    logits[row::3, (vocab // 2) * row] = worst
                logits[2::3] = -INFINITY
            return Call(sample_args(inputs, inputs.place(logits, gap), filters))

        name = f"{kind}-rows{len(filters)}-{vocab}"
        return Case(name, "sample@1", {"vocab": vocab}, make, len(filters))

    yield case("spread", grid.vocabs[0], [])
    for vocab in grid.vocabs:
        yield case("spread", vocab, FILTERS[1:2], gap=0)
        yield case("spread", vocab, FILTERS)
    yield case("tied", grid.vocabs[-1], FILTERS)
    yield case("without_maximum", grid.vocabs[-1], FILTERS[:10])


def mask_logits(grid: Grid) -> Iterator[Case]:
    """Masks of some rows in any order and unused ones, over logits of which some are not finite."""

    def case(rows: int, masks: int, unused: int, vocab: int, gap: int) -> Case:
        def make(inputs: Inputs) -> Call:
            logits = inputs.random(rows, vocab, dtype=torch.float32)
            logits[:, vocab // 2] = -INFINITY
            words = -(-vocab // 32)
            mask = inputs.integers(-(2**31), 2**31 - 1, masks + unused, words, gap=1)
            mask[:1, : words // 2], mask[1:2] = -1, 0  # words that keep all, a row that keeps none
            targets = inputs.order(rows)[:masks] + [-1] * unused
            row = inputs.ints([targets[i] for i in inputs.order(masks + unused)])
            return Call((inputs.place(logits, gap), mask, row))

        name = f"rows{rows}-masks{masks}+{unused}-{vocab}"
        return Case(name, "mask_logits@1", {"vocab": vocab}, make, rows)

    for vocab in grid.vocabs:
        yield case(1, 1, 0, vocab, gap=0)
        yield case(6, 4, 2, vocab, gap=3)
    yield case(3, 0, 2, grid.vocabs[-1], gap=0)


SLOTS, WIDTH, ENTRIES = 9, 64, 300


def page_table_update(grid: Grid) -> Iterator[Case]:
    """Entries behind their slot's epoch, and stale ones behind the count. No size of the grid."""

    def case(count: int) -> Case:
        def make(inputs: Inputs) -> Call:
            table = inputs.integers(1, 1000, SLOTS, WIDTH, gap=1)
            epochs = inputs.integers(0, 5, SLOTS)
            places = inputs.order((SLOTS - 2) * WIDTH)[:ENTRIES]  # none in the first and last slot
            slot = inputs.ints([place // WIDTH + 1 for place in places])
            index = inputs.ints([place % WIDTH for place in places])
            epoch = inputs.place(inputs.integers(0, 5, SLOTS)[slot.long()])
            epoch[count:] = 9  # would be applied
            page = inputs.integers(1000, 2000, ENTRIES)
            return Call((table, epochs, slot, epoch, index, page, inputs.ints([count])))

        return Case(f"count{count}_of_{ENTRIES}", "page_table_update@1", {}, make, SLOTS)

    for count in (0, 1, 290, ENTRIES):
        yield case(count)
