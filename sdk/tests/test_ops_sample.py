# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""sample@1: known answers of the generator, the filters, and the distribution it draws from."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_sdk import ops
from tokenspeed_sdk.ops.philox import philox4x32

ONES = 0xFFFFFFFF
KNOWN_ANSWERS = [  # published with the Random123 library: key, counter, block
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES), (ONES,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("key", "counter", "block"), KNOWN_ANSWERS)
def test_philox_known_answers(
    key: tuple[int, int], counter: tuple[int, int, int, int], block: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    assert tuple(int(word) for word in philox4x32(key, (c0, c1, c2, c3))) == block


def draw(
    logits: torch.Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 1,
    position: int | torch.Tensor = 0,
) -> torch.Tensor:
    """Every row with the same parameters."""
    rows = logits.shape[0]
    where = position if isinstance(position, torch.Tensor) else torch.full((rows,), position)
    return ops.sample(
        logits,
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        torch.full((rows,), seed),
        where,
    )


def support(p: list[float], **params: float) -> set[int]:
    """Ids that 200 draws at different positions give."""
    logits = torch.tensor(p).log().expand(200, -1)
    return set(draw(logits, position=torch.arange(200), **params).tolist())  # type: ignore[arg-type]


def test_temperature_zero_is_argmax_and_lowest_id_wins() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [-1.0, -2.0, -1.0], [float("-inf"), 0.0, -1.0]])
    assert draw(logits, temperature=0.0).tolist() == [1, 0, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_distribution_yields_minus_one(temperature: float) -> None:
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[0.0, nan], [nan, nan], [-inf, -inf], [inf, 0.0], [0.0, -inf]])
    assert draw(logits, temperature=temperature).tolist() == [-1, -1, -1, -1, 0]


def test_filters() -> None:
    p = [0.1, 0.4, 0.2, 0.3]
    assert support(p) == {0, 1, 2, 3}
    assert support(p, top_k=2) == {1, 3}
    assert support(p, top_k=100) == {0, 1, 2, 3}
    assert support(p, top_p=0.65) == {1, 3}
    assert support(p, top_p=0.75) == {1, 2, 3}
    assert support([0.5, 0.5], top_p=0.5) == {0}, "the mass that reaches top_p is enough"
    assert support(p, top_p=0.0) == {1}
    assert support(p, min_p=0.6) == {1, 3}
    assert support(p, min_p=1.0) == {1}
    # Top-p counts mass after top-k: 0.4 of 0.7 is 0.57.
    assert support(p, top_k=2, top_p=0.55) == {1}


def test_top_k_ties_go_to_the_lower_id() -> None:
    assert support([0.25, 0.25, 0.25, 0.25], top_k=2) == {0, 1}


def test_a_masked_token_is_never_drawn() -> None:
    assert support([0.5, 0.0, 0.5]) == {0, 2}


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_distribution(temperature: float) -> None:
    """Frequencies of 4000 draws lie within four standard deviations."""
    p, n = torch.tensor([0.5, 0.3, 0.15, 0.05]), 4000
    drawn = draw(p.log().expand(n, -1), temperature=temperature, position=torch.arange(n))
    wanted = (p.double().log() / temperature).softmax(0)
    found = torch.bincount(drawn, minlength=4) / n
    assert ((found - wanted).abs() < 4 * (wanted * (1 - wanted) / n).sqrt()).all()


def test_a_draw_depends_on_its_own_row_alone() -> None:
    logits, positions = torch.randn(6, 50), torch.arange(6) + 7
    together = draw(logits, position=positions)
    alone = [draw(logits[e : e + 1], position=positions[e : e + 1]).item() for e in range(6)]
    assert together.tolist() == alone


def test_seed_and_position_count_with_all_their_bits() -> None:
    logits = torch.zeros(1, 5000)
    seeds = [0, 1, 1 << 32, -1, (1 << 63) - 1]
    drawn = {int(draw(logits, seed=seed)) for seed in seeds}
    drawn |= {int(draw(logits, position=position)) for position in (1, 1 << 32)}
    assert len(drawn) == len(seeds) + 2


def test_tiny_temperature_does_not_overflow() -> None:
    logits = torch.tensor([[3e38, -3e38, 0.0]])
    assert draw(logits, temperature=1e-30).tolist() == [0]
