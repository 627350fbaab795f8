# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What linear_int8@1 refuses, and values that a product of integers could hide."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_sdk import ops
from tokenspeed_sdk.contracts.kernel import BoundKernel
from tokenspeed_sdk.ops.int8 import quantize_weight

from .support import bind, find, site


def made(n: int, k: int) -> tuple[BoundKernel, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The kernel, packed codes, plain codes and scales of a random weight."""
    traits = {"n": n, "k": k, "bias": False}
    codes, scale = quantize_weight(torch.randn(n, k))
    packed = find("linear_int8@1").pack_weight(site("linear_int8@1", **traits), codes)
    return bind("linear_int8@1", **traits), packed, codes, scale


@pytest.mark.parametrize(
    ("x", "scale", "problem"),
    [
        ((5, 96), (2, 40), "the packed weight is not that of this site"),
        ((5, 64), (2, 39), r"weight_scale must have shape \[2, 40\]; got \[2, 39\]"),
        ((5, 64), (3, 40), r"weight_scale must have shape \[2, 40\]; got \[3, 40\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    x: tuple[int, int], scale: tuple[int, int], problem: str
) -> None:
    """Reading on would be reading somebody's memory."""
    call, packed, _, _ = made(40, 64)
    with pytest.raises(ValueError, match=problem):
        call(torch.ones(x), packed, torch.ones(scale), None)


def test_a_floating_weight_is_refused() -> None:
    kernel = find("linear_int8@1")
    with pytest.raises(ValueError, match="a weight of codes must be a matrix of int8"):
        kernel.pack_weight(site("linear_int8@1", n=4, k=4, bias=False), torch.ones(4, 4))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_the_largest_codes_do_not_overflow(rows: int) -> None:
    """127 * 127 added up in each group, of one sign: what pairs of 16 bits cannot hold."""
    n, k = 20, 1536
    call, _, _, _ = made(n, k)
    codes = torch.full((n, k), 127, dtype=torch.int8)
    codes[1::2] = -127
    scale, x = torch.ones(k // 32, n), torch.full((rows, k), 127.0)
    x[1::2] = -127.0
    packed = find("linear_int8@1").pack_weight(site("linear_int8@1", n=n, k=k, bias=False), codes)
    out, wanted = call(x, packed, scale, None), ops.linear_int8(x, codes, scale)
    torch.testing.assert_close(out, wanted)
    assert out.abs().eq(127 * 127 * k).all()  # each sum is exact


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_visible_and_in_its_row(bad: float) -> None:
    call, packed, codes, scale = made(33, 70)
    x = torch.randn(3, 70)
    x[1, 69] = bad
    out = call(x, packed, scale, None)
    assert out[1].isnan().all()
    torch.testing.assert_close(out[::2], ops.linear_int8(x[::2], codes, scale))


@pytest.mark.usefixtures("isa")
def test_zeros_and_subnormal_numbers() -> None:
    call, packed, codes, scale = made(16, 64)
    x = torch.zeros(2, 64)
    x[1, :32] = 1e-44
    out = call(x, packed, scale, None)
    assert out[0].eq(0).all()
    torch.testing.assert_close(out[1], ops.linear_int8(x, codes, scale)[1])


@pytest.mark.usefixtures("isa")
def test_a_row_has_the_bits_that_it_has_alone() -> None:
    """So a guess that is verified beside others changes no answer."""
    call, packed, _, scale = made(40, 90)
    x = torch.randn(40, 90)
    alone = torch.cat([call(row, packed, scale, None) for row in x.split(1)])
    for rows in (2, 3, 9, 12, 13, 25, 40):
        assert call(x[:rows], packed, scale, None).equal(alone[:rows]), rows
