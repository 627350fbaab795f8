# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Cases of the ops around sampling that know a request's earlier tokens. All are exact."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tokenspeed_sdk.testing.kernel.cases.base import Call, Case, Grid, Inputs

INFINITY = float("inf")
SENTINEL_TWICE = 2
"""Padded rows at the end of a batch."""

PENALTIES = (
    # repetition, frequency, presence
    (0.0, 0.0, 0.0),
    (1.3, 0.0, 0.0),
    (1.0, 0.7, 0.0),
    (1.0, 0.0, -1.1),
    (0.6, -0.3, 0.9),
    (1.0, 0.0, 0.0),
    (3.0, 2.0, 2.0),
)
"""Of the slots in turn: each alone, all together, none."""

BIASES = 70
"""Width of the list. Slots have none, one, some and all of them."""


def adjust_logits(grid: Grid) -> Iterator[Case]:
    """Every penalty alone and together, biases in all numbers, rows that ask for nothing, and
    several rows of one slot."""
    yield from _adjusted(grid, "adjust_logits@1")


def adjust_logits_verify(grid: Grid) -> Iterator[Case]:
    """The same; among the guesses of a row are tokens that come twice, that were seen before, and
    that are none."""
    yield from _adjusted(grid, "adjust_logits_verify@1")


def _adjusted(grid: Grid, op: str) -> Iterator[Case]:
    def case(kind: str, vocab: int, rows: int, gap: int = 3, longest: int = 3) -> Case:
        def make(inputs: Inputs) -> Call:
            slots = rows + 2
            padded = min(rows, SENTINEL_TWICE) if rows > SENTINEL_TWICE else 0
            slot = [i + 1 for i in inputs.order(rows - padded)] + [slots - 1] * padded
            if kind == "guesses":
                slot = [1 + row // longest for row in range(rows)]
            logits = inputs.random(rows, vocab, dtype=torch.float32) * 5
            logits[inputs.integers(0, 9, rows, vocab) == 0] = -INFINITY
            logits[inputs.integers(0, 9, rows, vocab) == 0] = 0.0
            position = inputs.integers(0, 100, rows, dtype=torch.int64)
            asked = inputs.integers(0, 3, slots, 1)
            if kind == "idle":
                asked.zero_()
            asked[-1] = 0
            penalties, biases = _records(inputs, kind, slots, vocab)
            guess = () if op == "adjust_logits@1" else (_guesses(inputs, rows, vocab),)
            return Call(
                (
                    inputs.place(logits, gap),
                    inputs.normal(rows, vocab, gap=gap, dtype=torch.float32),
                    inputs.ints(slot, dtype=torch.int64),
                    position,
                    *guess,
                    asked,
                    penalties,
                    _counts(inputs, slots, vocab, gap),
                    *biases,
                )
            )

        name = f"{kind}-rows{rows}-{vocab}"
        return Case(name, op, {"vocab": vocab}, make, rows)

    yield case("mixed", grid.vocabs[0], 0)
    for vocab in grid.vocabs:
        yield case("mixed", vocab, 1, gap=0)
        yield case("mixed", vocab, 17)
    yield case("penalties", grid.vocabs[-1], 17)
    yield case("biases", grid.vocabs[-1], 9)
    yield case("guesses", grid.vocabs[-1], 9)
    yield case("guesses", grid.vocabs[-1], 40, longest=13)
    yield case("idle", grid.vocabs[-1], 9)


def record_tokens(grid: Grid) -> Iterator[Case]:
    """Tokens of slots with and without penalties, and of rows that have none."""

    def case(vocab: int, rows: int, gap: int = 3) -> Case:
        def make(inputs: Inputs) -> Call:
            slots = rows + 2
            token = inputs.integers(0, vocab, rows, dtype=torch.int64)
            token[2::5] = -1
            return Call(
                (
                    inputs.integers(0, vocab, slots, dtype=torch.int64),
                    _counts(inputs, slots, vocab, gap),
                    _penalties(inputs, slots),
                    inputs.ints([i + 1 for i in inputs.order(rows)], dtype=torch.int64),
                    token,
                )
            )

        name = f"rows{rows}-{vocab}"
        return Case(name, "record_tokens@1", {"vocab": vocab}, make, rows)

    for rows in (0, 1, 9, 130):
        yield case(grid.vocabs[-1], rows)
    yield case(grid.vocabs[0], 9, gap=0)


def _counts(inputs: Inputs, slots: int, vocab: int, gap: int) -> torch.Tensor:
    """[S2, V]: most tokens not seen, some in the prompt, some generated now and again."""
    seen = inputs.integers(0, 12, slots, vocab)
    some = torch.where(seen < 4, seen, 0)
    some[seen == 4] = 2 * 4097  # the greatest product with a penalty that is rounded
    return inputs.place(some, gap)


def _guesses(inputs: Inputs, rows: int, vocab: int) -> torch.Tensor:
    """[E]: half of them the same few tokens."""
    few = inputs.integers(0, min(vocab, 4), rows)
    return inputs.place(torch.where(few % 2 == 0, few, inputs.integers(-1, vocab + 1, rows)))


def _penalties(inputs: Inputs, slots: int) -> torch.Tensor:
    """[S2, 3]; the last slot, which is nobody's, has none."""
    rows = [PENALTIES[(s + 1) % len(PENALTIES)] for s in range(slots)]
    return inputs.place(torch.tensor([*rows[:-1], PENALTIES[0]], device=inputs.device), gap=1)


def _records(
    inputs: Inputs, kind: str, slots: int, vocab: int
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Penalties and biases of the slots: both, one of them, or neither."""
    penalties = _penalties(inputs, slots)
    if kind in ("biases", "idle"):
        penalties.copy_(torch.tensor(PENALTIES[0]))
    ids = inputs.integers(0, vocab, slots, BIASES, gap=1)
    values = inputs.random(slots, BIASES, dtype=torch.float32)
    values[inputs.integers(0, 6, slots, BIASES) == 0] = -INFINITY
    until = inputs.integers(1, 100, slots, BIASES, gap=2)
    for s in range(slots):
        until[s, (0, 1, 7, BIASES)[s % 4] :] = 0
    if kind in ("penalties", "idle"):
        until.zero_()
    until[-1] = 0
    return penalties, (ids, inputs.place(values, gap=1), until)
