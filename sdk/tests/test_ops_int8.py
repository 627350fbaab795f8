# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Eight-bit integers: codes, scales, and the op that is defined by them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenspeed_sdk import ops
from tokenspeed_sdk.native import abi
from tokenspeed_sdk.native.host import describe, torch_dtype
from tokenspeed_sdk.ops.int8 import (
    dequantize_rows,
    dequantize_weight,
    quantize_rows,
    quantize_weight,
)


def test_codes_are_the_nearest_with_halves_to_even() -> None:
    x = torch.tensor([[127.0, 1.0, 1.4, 1.5, 2.5, -2.5, -127.0, 0.0]])
    codes, scale = quantize_rows(x)
    assert codes.tolist() == [[127, 1, 1, 2, 2, -2, -127, 0]]
    assert scale.tolist() == [[1.0]]


def test_every_group_of_32_has_its_scale() -> None:
    x = torch.zeros(2, 70)
    x[0, 31], x[0, 32], x[1, 69] = 127.0, -254.0, 63.5
    codes, scale = quantize_rows(x)
    assert scale.tolist() == [[1.0, 2.0, 1.0], [1.0, 1.0, 0.5]]  # 1 stands for no value
    assert (codes[0, 31], codes[0, 32], codes[1, 69]) == (127, -127, 127)
    assert dequantize_rows(codes, scale).equal(x)
    weight_codes, weight_scale = quantize_weight(x)
    assert weight_codes.equal(codes)
    assert weight_scale.equal(scale.T)
    assert dequantize_weight(weight_codes, weight_scale).equal(x)


@given(seed=st.integers(0, 2**32), rows=st.integers(1, 4), k=st.integers(1, 100))
def test_rounding_is_off_by_half_a_step_at_most(seed: int, rows: int, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, k, generator=generator) * 10 ** torch.randn(1, k, generator=generator)
    codes, scale = quantize_rows(x)
    step = scale.repeat_interleave(32, 1)[:, :k]
    assert int(codes.min()) >= -127
    assert bool(((dequantize_rows(codes, scale) - x).abs() <= step * 0.50001).all())


def test_linear_is_the_product_of_what_the_codes_stand_for() -> None:
    x, weight, bias = torch.randn(3, 200), torch.randn(150, 200), torch.randn(150)
    codes, scale = quantize_weight(weight)
    rows = dequantize_rows(*quantize_rows(x))
    wanted = ops.linear(rows, dequantize_weight(codes, scale), bias)
    out = ops.linear_int8(x, codes, scale, bias)
    torch.testing.assert_close(out, wanted)
    assert (out - ops.linear(x, weight, bias)).norm() < 0.012 * out.norm()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_visible_and_in_its_row(bad: float) -> None:
    x = torch.ones(2, 64)
    x[0, 40] = bad
    out = ops.linear_int8(x, *quantize_weight(torch.ones(3, 64)))
    assert not out[0].isfinite().any()
    torch.testing.assert_close(out[1], torch.full((3,), 64.0))


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"weight": torch.zeros(130, 40)}, "weight must have dtype int8; got float32"),
        (
            {"scale": torch.zeros(130, 2)},
            r"weight_scale must have shape \[2, N=130\]; got \[130, 2",
        ),
        ({"scale": torch.zeros(2, 130).half()}, "weight_scale must have dtype float32"),
    ],
)
def test_codes_and_scales_are_checked(wrong: dict[str, torch.Tensor], problem: str) -> None:
    args = {"weight": torch.zeros(130, 40, dtype=torch.int8), "scale": torch.zeros(2, 130)} | wrong
    with pytest.raises(ValueError, match="linear_int8@1: argument " + problem):
        ops.linear_int8(torch.zeros(1, 40), args["weight"], args["scale"])


def test_native_kernels_are_told_the_dtype() -> None:
    described = describe(torch.zeros(2, 3, dtype=torch.int8))
    assert (described.dtype.code, described.dtype.bits) == (0, 8)
    assert torch_dtype(abi.DType(1, 8, 1)) == torch.uint8


@pytest.mark.parametrize("gated", [False, True])
def test_the_fused_linear_is_its_parts(gated: bool) -> None:
    x, residual, norm = torch.randn(3, 64), torch.randn(3, 64), torch.rand(64)
    codes, scale = quantize_weight(torch.randn(20, 64))
    summed = torch.full_like(residual, torch.nan)
    out = ops.add_norm_linear_int8(x, residual, summed, norm, codes, scale, None, 0.1, gated=gated)
    assert summed.equal(x + residual)
    product = ops.linear_int8(ops.rms_norm(summed, norm, 0.1), codes, scale)
    assert out.equal(ops.silu_and_mul(product) if gated else product)
