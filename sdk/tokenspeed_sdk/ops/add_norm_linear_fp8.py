# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""add_norm_linear_fp8@1: the start of a pre-norm block in front of a projection of eight bits."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOATS, Args
from tokenspeed_sdk.ops.add_norm_linear import activated, add_norm, check_sum, projected
from tokenspeed_sdk.ops.linear_fp8 import check_weight, linear_fp8
from tokenspeed_sdk.ops.op import Op


def add_norm_linear_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    summed: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    *,
    gated: bool,
) -> torch.Tensor:
    """``add_norm_linear@1`` with ``linear_fp8@1`` as its product.

    A kernel need not round before it quantises, nor between the product and the activation. The
    codes do not depend on the factor of a row's norm, only its scales do: a kernel may quantise
    before it knows that factor.

    Args:
        x: [T, K] floating; left as it is.
        residual: [T, K] in the dtype of ``x``; left as it is.
        summed: [T, K] in the dtype of ``x``; written IN PLACE, never read; not the memory of ``x``
            or ``residual``.
        norm_weight: [K] in the dtype of ``x``.
        weight: [N, K] float8_e4m3fn. A kernel gets what its ``pack_weight`` made of it.
        weight_scale: [ceil(N / 128), ceil(K / 128)] float32.
        bias: [N] in the dtype of ``x``, or None.
        eps: positive, added to the mean of squares.
        gated: whether the product is gate, then up, and the result ``silu(gate) * up``.

    Returns:
        [T, N], or [T, N / 2] if ``gated``, in the dtype of ``x``.

    Raises:
        ValueError: a shape or dtype is wrong, ``eps`` is not positive, or ``summed`` is another
            argument's memory.
    """
    args = Args("add_norm_linear_fp8@1")
    args.tensor("x", x, "T K", FLOATS)
    check_sum(args, x, residual, summed, norm_weight)
    check_weight(args, weight, weight_scale)
    normed = add_norm(x, residual, summed, norm_weight, eps)
    return activated(linear_fp8(normed, weight, weight_scale, bias), gated)


ADD_NORM_LINEAR_FP8 = Op(
    "add_norm_linear_fp8@1",
    add_norm_linear_fp8,
    traits=("n", "k", "bias", "gated"),
    keywords=("gated",),
    result=projected,
)
