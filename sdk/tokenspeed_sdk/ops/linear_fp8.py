# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""linear_fp8@1: a matrix product of eight-bit numbers, whose activations are quantised on the way.

Scales by blocks: DeepSeek-AI, 2024, arXiv:2412.19437.
"""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops import examples
from tokenspeed_sdk.ops._args import E4M3, FLOAT32, FLOATS, Args, compute_dtype
from tokenspeed_sdk.ops.fp8 import BLOCK, dequantize_rows, dequantize_weight, quantize_rows
from tokenspeed_sdk.ops.linear import projected
from tokenspeed_sdk.ops.op import Op


def linear_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``linear@1`` of quantised activations and a weight of e4m3 codes.

        s[t, g]    = max over the 128 features of group g of |x[t, k]|, / 448, in float32
        code[t, k] = e4m3(x[t, k] / s[t, k / 128])
        out[t, n]  = sum over k of code[t, k] * s[t, k / 128]
                     * weight[n, k] * weight_scale[n / 128, k / 128], + bias[n]

    Where a group is all zero, so are its codes.

    Args:
        x: [T, K] floating; T may be 0.
        weight: [N, K] float8_e4m3fn. A kernel gets what its ``pack_weight`` made of it.
        weight_scale: [ceil(N / 128), ceil(K / 128)] float32.
        bias: [N] in the dtype of ``x``, or None.

    Returns:
        [T, N] in the dtype of ``x``.

    Raises:
        ValueError: a shape or dtype is wrong.
    """
    args = Args("linear_fp8@1")
    args.tensor("x", x, "T K", FLOATS)
    check_weight(args, weight, weight_scale)
    dtype = compute_dtype(x)
    rows = dequantize_rows(*quantize_rows(x), dtype)
    out = rows @ dequantize_weight(weight, weight_scale, dtype).T
    if bias is not None:
        args.tensor("bias", bias, "N", FLOATS)
        args.same_dtype(x=x, bias=bias)
        out = out + bias.to(dtype)
    return out.to(x.dtype)


def check_weight(args: Args, weight: torch.Tensor, weight_scale: torch.Tensor) -> None:
    """Shapes and dtypes of codes and scales, beside an ``x`` that was checked."""
    args.tensor("weight", weight, "N K", E4M3)
    blocks = " ".join(str(-(-size // BLOCK)) for size in weight.shape)
    args.tensor("weight_scale", weight_scale, blocks, FLOAT32)


LINEAR_FP8 = Op(
    "linear_fp8@1",
    linear_fp8,
    traits=("n", "k", "bias"),
    result=projected,
    example=examples.linear_fp8,
)
