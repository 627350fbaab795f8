# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Eight-bit numbers: codes, scales, and the ops that are defined by them."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_sdk import ops
from tokenspeed_sdk.native import abi
from tokenspeed_sdk.native.host import describe, torch_dtype
from tokenspeed_sdk.ops.fp8 import (
    DTYPE,
    dequantize_rows,
    dequantize_weight,
    encode,
    quantize_rows,
    quantize_weight,
)

ONE = torch.ones(1)


def test_codes_are_the_nearest_and_end_at_the_largest() -> None:
    values = torch.tensor([0.0, 1.0, 1.06, 1.07, -447.0, 1e6, -1e6, 2.0**-9, 2.0**-11])
    wanted = [0.0, 1.0, 1.0, 1.125, -448.0, 448.0, -448.0, 2.0**-9, 0.0]
    assert encode(values, ONE).float().tolist() == wanted
    assert encode(values[:2], torch.tensor([0.5])).float().tolist() == [0.0, 2.0]


def test_every_block_of_a_weight_has_its_scale() -> None:
    weight = torch.ones(130, 257)
    weight[:128, 128:256], weight[128:, 256:] = -7.0, 14.0
    weight[128:, 128:256] = 0.0
    codes, scale = quantize_weight(weight)
    assert (scale * 448).tolist() == [[1.0, 7.0, 1.0], [1.0, 448.0, 14.0]]  # 1 stands for no value
    assert dequantize_weight(codes, scale).equal(weight)


def test_every_group_of_a_token_has_its_scale() -> None:
    x = torch.cat((torch.full((2, 128), 3.0), torch.tensor([[0.5], [0.0]])), 1).bfloat16()
    codes, scale = quantize_rows(x)
    torch.testing.assert_close(scale * 448, torch.tensor([[3.0, 0.5], [3.0, 448.0]]))
    assert dequantize_rows(codes, scale).equal(x.float())


def test_linear_is_the_product_of_what_the_codes_stand_for() -> None:
    x, weight, bias = torch.randn(3, 200), torch.randn(150, 200), torch.randn(150)
    codes, scale = quantize_weight(weight)
    rows = dequantize_rows(*quantize_rows(x))
    wanted = ops.linear(rows, dequantize_weight(codes, scale), bias)
    torch.testing.assert_close(ops.linear_fp8(x, codes, scale, bias), wanted)


@pytest.mark.parametrize("gated", [False, True])
def test_add_norm_linear_is_its_parts(gated: bool) -> None:
    x, residual, norm = torch.randn(3, 200), torch.randn(3, 200), torch.randn(200)
    codes, scale = quantize_weight(torch.randn(64, 200))
    summed = torch.empty_like(x)
    out = ops.add_norm_linear_fp8(x, residual, summed, norm, codes, scale, None, 0.1, gated=gated)
    wanted = ops.linear_fp8(ops.rms_norm(x + residual, norm, 0.1), codes, scale)
    assert summed.equal(x + residual)
    assert out.equal(ops.silu_and_mul(wanted) if gated else wanted)


def test_silu_linear_is_its_parts() -> None:
    x = torch.randn(3, 400)
    codes, scale = quantize_weight(torch.randn(150, 200))
    out = ops.silu_linear_fp8(x, codes, scale, bias := torch.randn(150))
    assert out.equal(ops.linear_fp8(ops.silu_and_mul(x), codes, scale, bias))
    with pytest.raises(ValueError, match="x must have twice the 200 columns of weight; got 200"):
        ops.silu_linear_fp8(x[:, :200], codes, scale)


def test_attention_over_codes_is_attention_over_their_values() -> None:
    """Written with scales, read with the same: the plain ops on the rounded values agree."""
    slots = torch.tensor([1, 1, 1], dtype=torch.int32)
    positions = torch.tensor([0, 1, 2], dtype=torch.int32)
    table = torch.tensor([[0, 0], [2, 1], [0, 0]], dtype=torch.int32)
    k, v, q = torch.randn(3, 1, 8), torch.randn(3, 1, 8) * 100, torch.randn(3, 2, 8)
    scales = torch.tensor([0.3]), torch.tensor([1.7])
    cache = [torch.zeros(3, 1, 2, 8, dtype=DTYPE) for _ in "kv"]
    ops.kv_write_fp8(k, v, *cache, table, slots, positions, *scales)
    plain = [torch.zeros(3, 1, 2, 8) for _ in "kv"]
    near = [encode(x, s).float() * s for x, s in zip((k, v), scales, strict=True)]
    ops.kv_write(*near, *plain, table, slots, positions)
    rows = (table, slots[:1], torch.tensor([0, 3], dtype=torch.int32), positions[2:] + 1)
    wanted = ops.attention_prefill(q, *plain, *rows, 0.5, window=None)
    out = ops.attention_prefill_fp8(q, *cache, *rows, *scales, 0.5, window=None)
    torch.testing.assert_close(out, wanted)
    row = (table, slots[:1], positions[2:] + 1)
    last = ops.attention_decode_fp8(q[2:], *cache, *row, *scales, 0.5, window=None)
    torch.testing.assert_close(last, wanted[2:])


def test_rope_kv_write_is_its_parts() -> None:
    q, k, v = torch.randn(1, 2, 4), torch.randn(1, 1, 4), torch.randn(1, 1, 4)
    weight, scales = torch.randn(4), (torch.tensor([0.2]), torch.tensor([0.3]))
    table, one = torch.tensor([[0], [1], [0]], dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    cos_sin, caches = torch.randn(2, 4), torch.zeros(2, 2, 2, 1, 2, 4, dtype=DTYPE)
    norms = weight, weight
    given = (one, cos_sin, *caches[0], table, one, *norms, *scales)
    out = q.clone()
    ops.rope_kv_write_fp8(out, k, v, *given, 0.1, interleaved=False)
    wanted, keys = (ops.rms_norm(x, weight, 0.1) for x in (q, k))
    ops.rope(wanted, keys, one, cos_sin, interleaved=False)
    ops.kv_write_fp8(keys, v, *caches[1], table, one, one, *scales)
    assert out.equal(wanted)
    assert caches[0].view(torch.uint8).equal(caches[1].view(torch.uint8))


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"weight": torch.zeros(130, 8)}, "weight must have dtype float8_e4m3fn; got float32"),
        ({"scale": torch.zeros(1, 1)}, r"weight_scale must have shape \[2, 1\]; got \[1, 1\]"),
        ({"scale": torch.zeros(2, 1).half()}, "weight_scale must have dtype float32; got float16"),
    ],
)
def test_codes_and_scales_are_checked(wrong: dict[str, torch.Tensor], problem: str) -> None:
    given = {"weight": torch.zeros(130, 8, dtype=DTYPE), "scale": torch.zeros(2, 1)} | wrong
    with pytest.raises(ValueError, match="linear_fp8@1: argument " + problem):
        ops.linear_fp8(torch.zeros(1, 8), given["weight"], given["scale"])


def test_native_kernels_are_told_the_dtype() -> None:
    described = describe(torch.zeros(2, 3, dtype=DTYPE))
    assert (described.dtype.code, described.dtype.bits) == (10, 8)  # kDLFloat8_e4m3fn
    assert torch_dtype(abi.DType(10, 8, 1)) == DTYPE
