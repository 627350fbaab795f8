# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The reference of rope@1 against multiplication by complex numbers."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_sdk import ops
from tokenspeed_sdk.modeling.rope import RopeConfig, cos_sin_table


def rotate(x: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """[T, heads, rotary] times e^(i angle), pairs read as complex numbers."""
    half = x.shape[-1] // 2
    pairs = x.unflatten(-1, (half, 2)) if interleaved else x.unflatten(-1, (2, half)).mT
    turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(
        torch.ones_like(angles), angles
    ).unsqueeze(1)
    real = torch.view_as_real(turned)
    return (real if interleaved else real.mT).flatten(-2)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary", [8, 4])
def test_rope_multiplies_by_complex_numbers(rotary: int, interleaved: bool) -> None:
    q = torch.randn(5, 4, 8, dtype=torch.float64)
    k = torch.randn(5, 2, 8, dtype=torch.float64)
    positions = torch.tensor([0, 7, 3, 3, 15], dtype=torch.int32)
    table = cos_sin_table(RopeConfig(rotary), 16, "cpu")
    angles = torch.atan2(table[:, rotary // 2 :], table[:, : rotary // 2]).double()[positions]
    wanted = [
        torch.cat((rotate(x[..., :rotary], angles, interleaved), x[..., rotary:]), -1)
        for x in (q, k)
    ]
    ops.rope(q, k, positions, table, interleaved=interleaved)
    torch.testing.assert_close([q, k], wanted, rtol=0, atol=1e-6)


def test_rope_rotates_views_of_one_tensor_in_place() -> None:
    qkv = torch.randn(3, 8, 4)
    before = qkv.clone()
    q, k, v = qkv.split_with_sizes((4, 2, 2), 1)
    table = cos_sin_table(RopeConfig(4), 8, "cpu")
    ops.rope(q, k, torch.tensor([1, 2, 3], dtype=torch.int32), table, interleaved=False)
    assert not torch.equal(qkv[:, :6], before[:, :6])
    assert torch.equal(v, before[:, 6:])


def test_scores_depend_on_the_distance_only() -> None:
    q, k = torch.randn(2, 1, 1, 16, dtype=torch.float64)
    table = cos_sin_table(RopeConfig(16), 64, "cpu")

    def score(i: int, j: int) -> torch.Tensor:
        a, b = q.clone(), k.clone()
        for x, position in ((a, i), (b, j)):
            at = torch.tensor([position], dtype=torch.int32)
            ops.rope(x, x.clone(), at, table, interleaved=False)
        return (a * b).sum()

    torch.testing.assert_close(score(9, 4), score(35, 30), rtol=0, atol=1e-5)
