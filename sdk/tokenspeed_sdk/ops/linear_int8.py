# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""linear_int8@1: a product of eight-bit integers, whose activations are quantised on the way."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops import examples
from tokenspeed_sdk.ops._args import FLOAT32, FLOATS, INT8, Args, compute_dtype
from tokenspeed_sdk.ops.int8 import dequantize_rows, dequantize_weight, groups_of, quantize_rows
from tokenspeed_sdk.ops.linear import projected
from tokenspeed_sdk.ops.op import Op


def linear_int8(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``linear@1`` of quantised activations and a weight of eight-bit codes.

        s[t, g]    = max over the 32 features of group g of |x[t, k]|, / 127, in float32
        code[t, k] = x[t, k] / s[t, k / 32], to the nearest integer, halves to even
        out[t, n]  = sum over g of s[t, g] * weight_scale[g, n]
                     * sum over k in g of code[t, k] * weight[n, k], + bias[n]

    Where a scale would be zero it is 1, and the codes are zero.

    Args:
        x: [T, K] floating; T may be 0.
        weight: [N, K] int8, none -128. A kernel gets what its ``pack_weight`` made of it.
        weight_scale: [ceil(K / 32), N] float32.
        bias: [N] in the dtype of ``x``, or None.

    Returns:
        [T, N] in the dtype of ``x``.

    Raises:
        ValueError: a shape or dtype is wrong.
    """
    args = Args("linear_int8@1")
    args.tensor("x", x, "T K", FLOATS)
    check_weight(args, x, weight, weight_scale)
    dtype = compute_dtype(x)
    rows = dequantize_rows(*quantize_rows(x), dtype)
    out = rows @ dequantize_weight(weight, weight_scale, dtype).T
    if bias is not None:
        args.tensor("bias", bias, "N", FLOATS)
        args.same_dtype(x=x, bias=bias)
        out = out + bias.to(dtype)
    return out.to(x.dtype)


def check_weight(
    args: Args, x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor
) -> None:
    """Shapes and dtypes of codes and scales, beside an ``x`` that was checked."""
    args.tensor("weight", weight, "N K", INT8)
    args.tensor("weight_scale", weight_scale, f"{groups_of(x.shape[1])} N", FLOAT32)


LINEAR_INT8 = Op(
    "linear_int8@1",
    linear_int8,
    traits=("n", "k", "bias"),
    result=projected,
    example=examples.linear_int8,
)
