# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""sample@1 against its definition, and as a source of random tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from .support import bind, embedded, randn, reference

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


@pytest.mark.parametrize("vocab", [1, 5, 37, 1000, 5003])
def test_equals_reference(rng: torch.Generator, vocab: int) -> None:
    rows = [
        (p, int(torch.randint(-(2**62), 2**62, (1,), generator=rng)), 2**33 * i + i)
        for i, p in enumerate(PARAMS * 3)
    ]
    logits = embedded(randn(rng, len(rows), vocab) * 3)
    args = arguments(logits, rows)
    out, wanted = bind("sample@1", vocab=vocab)(*args), reference("sample@1", vocab=vocab)(*args)
    assert out.tolist() == wanted.tolist()


def test_masked_and_tied_logits(rng: torch.Generator) -> None:
    vocab = 3000
    logits = randn(rng, len(PARAMS), vocab).mul(4).round()  # many ties
    logits[torch.rand(logits.shape, generator=rng) < 0.9] = float("-inf")
    args = arguments(logits, [(p, 7, i) for i, p in enumerate(PARAMS)])
    out, wanted = bind("sample@1", vocab=vocab)(*args), reference("sample@1", vocab=vocab)(*args)
    assert out.tolist() == wanted.tolist()


def test_a_flat_nucleus_over_a_large_vocabulary(rng: torch.Generator) -> None:
    logits = randn(rng, 6, 49152)
    args = arguments(
        logits, [(Params(top_p=p), 3, i) for i, p in enumerate((0.5, 0.9, 0.999, 0.1, 0.01, 0.3))]
    )
    assert (
        bind("sample@1", vocab=49152)(*args).tolist()
        == reference("sample@1", vocab=49152)(*args).tolist()
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [Params(0.0), Params(), Params(top_k=3), Params(top_p=0.5)])
def test_a_row_without_a_finite_maximum_yields_no_token(
    rng: torch.Generator, params: Params, bad: float
) -> None:
    logits = randn(rng, 4, 100)
    logits[0, 99] = bad
    logits[1, 0] = bad
    logits[2] = float("-inf")
    out = bind("sample@1", vocab=100)(*arguments(logits, [(params, 1, 1)] * 4))
    assert out[:3].tolist() == [-1, -1, -1]
    assert 0 <= int(out[3]) < 100


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


def test_no_rows() -> None:
    call = bind("sample@1", vocab=10)
    assert call(*arguments(torch.empty(0, 10), [])).shape == (0,)


def test_params_can_be_mixed_with_greedy_rows(rng: torch.Generator) -> None:
    logits = randn(rng, 3, 500)
    rows = [(Params(0.0), 1, 1), (replace(Params(), top_k=1), 1, 1), (Params(), 1, 1)]
    out = bind("sample@1", vocab=500)(*arguments(logits, rows))
    assert out[:2].tolist() == logits[:2].argmax(1).tolist()
