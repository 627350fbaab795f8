# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""linear@1: a matrix product with an optional bias."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops import examples
from tokenspeed_sdk.ops._args import FLOATS, Args, compute_dtype
from tokenspeed_sdk.ops.op import Op, Result, Traits


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``out[t, n] = sum over k of x[t, k] * weight[n, k], + bias[n]``.

    Args:
        x: [T, K] floating; T may be 0.
        weight: [N, K] in the dtype of ``x``. A kernel gets what its ``pack_weight`` made of it.
        bias: [N] in the dtype of ``x``, or None.

    Returns:
        [T, N] in the dtype of ``x``.

    Raises:
        ValueError: a shape or dtype is wrong.
    """
    args = Args("linear@1")
    args.tensor("x", x, "T K", FLOATS)
    args.tensor("weight", weight, "N K", FLOATS)
    args.same_dtype(x=x, weight=weight)
    dtype = compute_dtype(x)
    out = x.to(dtype) @ weight.to(dtype).T
    if bias is not None:
        args.tensor("bias", bias, "N", FLOATS)
        args.same_dtype(x=x, bias=bias)
        out = out + bias.to(dtype)
    return out.to(x.dtype)


def projected(traits: Traits, x: torch.Tensor, *_: object) -> Result:
    """Shape and dtype of a product, whatever its weight is packed to."""
    return ((x.shape[0], traits["n"]), x.dtype)


LINEAR = Op(
    "linear@1", linear, traits=("n", "k", "bias"), result=projected, example=examples.linear
)
