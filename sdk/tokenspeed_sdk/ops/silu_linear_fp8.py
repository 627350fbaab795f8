# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""silu_linear_fp8@1: the end of a SwiGLU block, whose projection is of eight bits."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOATS, Args
from tokenspeed_sdk.ops.activation import silu_and_mul
from tokenspeed_sdk.ops.linear import projected
from tokenspeed_sdk.ops.linear_fp8 import linear_fp8
from tokenspeed_sdk.ops.op import Op


def silu_linear_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``linear_fp8@1`` of ``silu_and_mul@1``.

    A kernel need not round between the activation and its codes.

    Args:
        x: [T, 2 K] floating: gate, then up.
        weight: [N, K] float8_e4m3fn. A kernel gets what its ``pack_weight`` made of it.
        weight_scale: [ceil(N / 128), ceil(K / 128)] float32.
        bias: [N] in the dtype of ``x``, or None.

    Returns:
        [T, N] in the dtype of ``x``.

    Raises:
        ValueError: a shape or dtype is wrong.
    """
    args = Args("silu_linear_fp8@1")
    args.tensor("x", x, "T 2K", FLOATS)
    if x.shape[1] != 2 * weight.shape[-1]:
        args.fail(
            "x", f"must have twice the {weight.shape[-1]} columns of weight; got {x.shape[1]}"
        )
    return linear_fp8(silu_and_mul(x), weight, weight_scale, bias)


SILU_LINEAR_FP8 = Op(
    "silu_linear_fp8@1", silu_linear_fp8, traits=("n", "k", "bias"), result=projected
)
