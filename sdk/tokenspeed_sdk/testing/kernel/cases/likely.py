# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Cases of logprobs@1. Which tokens are likeliest is exact; how likely they are is rounded."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tokenspeed_sdk.testing.kernel.cases.base import Call, Case, Grid, Inputs

MOST = 21
"""Entries of a slot: the token and the 20 likeliest."""


def logprobs(grid: Grid) -> Iterator[Case]:
    """Rows that want nothing, the token alone, some and all; ties, and rows that have no token."""

    def case(kind: str, vocab: int, rows: int, gap: int = 3) -> Case:
        def make(inputs: Inputs) -> Call:
            slots = rows + 2
            logits = inputs.random(rows, vocab, dtype=torch.float32) * 6
            if kind == "tied":
                logits = logits.round()
            if kind == "far":  # e^x of the largest alone overflows
                logits = logits * 10 + 500
            allowed = vocab if kind != "masked" else max(vocab // 2, MOST)
            logits[:, allowed:] = float("-inf")
            token = inputs.integers(0, allowed, rows, dtype=torch.int64)
            token[3::7] = -1
            slot = inputs.ints([i + 1 for i in inputs.order(rows)], dtype=torch.int64)
            wanted = torch.tensor([(0, 1, 2, 6, MOST)[s % 5] for s in range(slots)])
            asks = inputs.place(wanted.to(inputs.device, torch.int32)[:, None], gap)
            if kind == "idle":
                asks.zero_()
            return Call(
                (
                    inputs.place(logits, gap),
                    token,
                    slot,
                    asks,
                    inputs.integers(0, vocab, slots, MOST, gap=gap),
                    inputs.normal(slots, MOST, gap=gap, dtype=torch.float32),
                )
            )

        return Case(f"{kind}-rows{rows}-{vocab}", "logprobs@1", {"vocab": vocab}, make, rows)

    yield case("spread", grid.vocabs[-1], 0)
    for vocab in grid.vocabs:
        yield case("spread", vocab, 17)
        yield case("tied", vocab, 9)
    yield case("spread", grid.vocabs[-1], 4, gap=0)
    yield case("masked", grid.vocabs[-1], 9)
    yield case("far", grid.vocabs[-1], 9)
    yield case("idle", grid.vocabs[-1], 9)
