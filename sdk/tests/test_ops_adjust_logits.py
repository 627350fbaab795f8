# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""adjust_logits@1 and record_tokens@1: Transformers' and the OpenAI API's definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenspeed_sdk import ops

V = 23
Biases = list[tuple[int, float, int]]


def adjusted(
    logits: torch.Tensor,
    prompt: list[int] = [],  # noqa: B006 (never changed)
    output: list[int] = [],  # noqa: B006
    *,
    penalties: tuple[float, float, float] = (1.0, 0.0, 0.0),
    biases: Biases = [],  # noqa: B006
    wanted: bool = False,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """One row [V] of slot 1, whose tokens are recorded one by one."""
    counts = torch.zeros(3, V, dtype=torch.int32)
    counts[1, prompt] = 1
    table, last = torch.zeros(3, 3), torch.zeros(3, dtype=torch.int64)
    table[1] = torch.tensor(penalties)
    slot = torch.tensor([1])
    for token in output:
        ops.record_tokens(last, counts, table, slot, torch.tensor([token]))
        assert last.tolist() == [0, token, 0]
    ids, until = (torch.zeros(3, 8, dtype=torch.int32) for _ in range(2))
    values = torch.zeros(3, 8)
    for i, (token, value, end) in enumerate(biases):
        ids[1, i], values[1, i], until[1, i] = token, value, end
    out = logits.clone()[None]
    asks = torch.tensor([[0], [int(wanted)], [0]], dtype=torch.int32)
    copy = torch.zeros(1, V) if kept is None else kept
    position = torch.tensor([len(prompt) + len(output)])
    ops.adjust_logits(out, copy, slot, position, asks, table, counts, ids, values, until)
    return out[0]


tokens = st.lists(st.integers(0, V - 1), max_size=12)


@settings(max_examples=60, deadline=None)
@given(tokens, tokens, st.floats(0.01, 100), st.integers(0, 99))
def test_repetition_is_transformers(
    prompt: list[int], output: list[int], penalty: float, seed: int
) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = torch.randn(V, generator=torch.Generator().manual_seed(seed))
    ids = torch.tensor([[*prompt, *output]], dtype=torch.int64)
    wanted = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone()[None])[0]
    got = adjusted(logits, prompt, output, penalties=(penalty, 0.0, 0.0))
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0)


@settings(max_examples=60, deadline=None)
@given(tokens, tokens, st.floats(-2, 2), st.floats(-2, 2))
def test_frequency_and_presence_are_the_formula(
    prompt: list[int], output: list[int], frequency: float, presence: float
) -> None:
    """Of generated tokens alone: the prompt's do not count."""
    logits = torch.linspace(-3, 3, V)
    wanted = [
        float(logits[j]) - output.count(j) * frequency - float(output.count(j) > 0) * presence
        for j in range(V)
    ]
    got = adjusted(logits, prompt, output, penalties=(1.0, frequency, presence))
    torch.testing.assert_close(got, torch.tensor(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("produced", [0, 3, 4, 5])
def test_banned_end_tokens_are_transformers_min_new_tokens(produced: int) -> None:
    from transformers import MinNewTokensLengthLogitsProcessor

    prompt, output, ends = [1, 2], list(range(produced)), [4, 9]
    logits = torch.linspace(-3, 3, V)
    processor = MinNewTokensLengthLogitsProcessor(len(prompt), 4, ends, device="cpu")
    wanted = processor(torch.tensor([[*prompt, *output]]), logits.clone()[None])[0]
    bans = [(end, -math.inf, len(prompt) + 4) for end in ends]
    assert torch.equal(adjusted(logits, prompt, output, biases=bans), wanted)


def test_biases_add_up_and_end() -> None:
    logits = torch.zeros(V)
    listed = [(3, 1.5, 99), (3, 2.0, 99), (4, -7.0, 1), (5, 1.0, 0), (6, 1.0, 99)]
    got = adjusted(logits, [1], biases=listed)  # its position is 1: nothing until 1 counts
    assert got.nonzero().flatten().tolist() == [3]
    assert got[3] == 3.5


def test_rows_that_are_kept() -> None:
    logits, kept = torch.linspace(-1, 1, V), torch.full((1, V), 7.0)
    adjusted(logits, biases=[(0, 1.0, 9)], kept=kept)
    assert bool((kept == 7).all())
    adjusted(logits, biases=[(0, 1.0, 9)], kept=kept, wanted=True)
    assert torch.equal(kept[0], logits)


def test_without_penalties_nothing_is_counted() -> None:
    counts, last = torch.zeros(3, V, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)
    table = torch.zeros(3, 3)
    table[2, 1] = 0.5
    for token in (5, -1):
        drawn = torch.tensor([token, token])
        ops.record_tokens(last, counts, table, torch.tensor([1, 2]), drawn)
        assert last.tolist() == [0, token, token]
    assert counts.nonzero().tolist() == [[2, 5]]
    assert counts[2, 5] == 2
