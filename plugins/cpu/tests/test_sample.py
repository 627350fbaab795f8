# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""sample@1 as a source of random tokens."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from .support import bind, randn

pytestmark = pytest.mark.usefixtures("isa")


@dataclass(frozen=True)
class Params:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


PARAMS = [
    Params(0.0),
    Params(),
    Params(0.3),
    Params(top_k=1),
    Params(top_k=5),
    Params(top_k=700),
    Params(0.8, top_p=0.9),
    Params(3.0, top_p=0.97),
    Params(top_p=0.0),
    Params(1.2, top_k=50, top_p=0.8),
    Params(min_p=0.1),
    Params(1.5, 40, 0.95, 0.05),
    Params(min_p=2.0),
    Params(1e-6),
]


def arguments(
    logits: torch.Tensor, rows: list[tuple[Params, int, int]]
) -> tuple[torch.Tensor, ...]:
    """Arguments of sample@1; a row is its params, seed and position."""
    floats = [
        torch.tensor([getattr(p, name) for p, _, _ in rows])
        for name in ("temperature", "top_p", "min_p")
    ]
    top_k = torch.tensor([p.top_k for p, _, _ in rows], dtype=torch.int32)
    seeds = torch.tensor([seed for _, seed, _ in rows], dtype=torch.int64)
    positions = torch.tensor([position for _, _, position in rows], dtype=torch.int64)
    return logits, floats[0], top_k, floats[1], floats[2], seeds, positions


def test_a_draw_does_not_depend_on_the_batch(rng: torch.Generator) -> None:
    rows = [(p, i, 10 * i) for i, p in enumerate(PARAMS)]
    logits = randn(rng, len(rows), 2000) * 2
    call = bind("sample@1", vocab=2000)
    together = call(*arguments(logits, rows)).tolist()
    alone = [int(call(*arguments(logits[i : i + 1], [row]))) for i, row in enumerate(rows)]
    backwards = call(*arguments(logits.flip(0), rows[::-1])).tolist()[::-1]
    assert together == alone == backwards


@pytest.mark.parametrize(
    "params", [Params(), Params(0.7), Params(top_k=4), Params(top_p=0.7), Params(1.3, 0, 1.0, 0.2)]
)
def test_frequencies_fit_the_distribution(params: Params) -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0])
    draws = 4000
    rows = [(params, 99, position) for position in range(draws)]
    out = bind("sample@1", vocab=7)(*arguments(logits.expand(draws, 7).contiguous(), rows))
    seen = torch.bincount(out, minlength=7).double()
    p = (logits.double() / params.temperature).softmax(0)
    kept = torch.zeros(7, dtype=torch.bool)
    kept[: params.top_k or 7] = True
    kept &= (p.cumsum(0) - p) / (p[kept].sum()) < params.top_p
    kept &= p >= params.min_p * p.max()
    expected = torch.where(kept, p, 0) / p[kept].sum() * draws
    assert seen[~kept].sum() == 0
    chi_square = ((seen - expected)[kept] ** 2 / expected[kept]).sum()
    assert chi_square < 25  # six degrees of freedom: p = 0.0003, and the draws are fixed


def test_unlikely_tokens_are_not_drawn_by_rounding() -> None:
    """A uniform that rounds to 1 must not make its token win."""
    vocab = 49152
    logits = torch.full((1, vocab), -20.0)
    logits[0, 17] = 20.0
    call = bind("sample@1", vocab=vocab)
    rows = [(Params(), seed, 5) for seed in range(60)]
    assert call(*arguments(logits.expand(60, -1).contiguous(), rows)).unique().tolist() == [17]
