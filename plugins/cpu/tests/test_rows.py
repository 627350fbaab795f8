# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Ops on rows at values and indices beyond what an op promises to take."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_sdk.ops import OPS

from .support import bind, int32, randn

pytestmark = pytest.mark.usefixtures("isa")


def test_silu_keeps_nan_and_extremes() -> None:
    gate = torch.tensor([float("nan"), float("inf"), 1e30, -1e30, 0.0] + [1.0] * 12)
    out = bind("silu_and_mul@1", inter=17)(torch.cat((gate, torch.ones(17)))[None])[0]
    assert out[0].isnan()
    assert out[1:5].tolist() == [float("inf"), pytest.approx(1e30), 0.0, 0.0]


def test_gather_of_a_row_that_is_not_there() -> None:
    out = bind("gather_rows@1")(torch.ones(2, 3), torch.tensor([2, -1, 1]))
    assert out.sum(1).tolist() == [0, 0, 3]


def test_positions_out_of_range_do_not_fault() -> None:
    q, k = torch.ones(2, 1, 16), torch.ones(2, 1, 16)
    bind("rope@1", head_dim=16, rotary=16, interleaved=False)(
        q, k, int32([-5, 99]), torch.ones(4, 16)
    )
    assert q.isfinite().all()


@pytest.mark.parametrize("shape", [(3, 5, 2, 37), (2, 3, 4, 5, 16), (4, 0, 16), (2, 0, 3, 16)])
def test_a_norm_of_any_rank_and_strides(rng: torch.Generator, shape: tuple[int, ...]) -> None:
    hidden = shape[-1]
    wide = randn(rng, *[size + 1 for size in shape])
    x = wide[tuple(slice(1, None) for _ in shape)]
    weight = randn(rng, hidden)
    out = bind("rms_norm@1", hidden=hidden)(x, weight, 1e-5)
    torch.testing.assert_close(out, OPS["rms_norm@1"].reference(x, weight, 1e-5))
    outer = x.transpose(0, 1)
    torch.testing.assert_close(
        bind("rms_norm@1", hidden=hidden)(outer, weight, 1e-5), out.transpose(0, 1)
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((torch.ones(2, 16, dtype=torch.float64), torch.ones(16)), "x must have dtype float32"),
        ((torch.ones(2, 16), torch.ones(15)), r"weight must have shape \[16\]; got \[15\]"),
        ((torch.ones(16, 2).t(), torch.ones(16)), "x must have a unit last stride; got 2"),
        ((torch.ones(16), torch.ones(16)), "x must have at least 2 dimensions"),
    ],
)
def test_the_border_refuses_what_a_kernel_cannot_read(
    args: tuple[torch.Tensor, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=f"rms_norm@1: cpu: {words}"):
        bind("rms_norm@1", hidden=16)(*args, 1e-5)
