# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""add_norm_linear@1: the start of a pre-norm block, from the residual's sum to its projection."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOATS, Args
from tokenspeed_sdk.ops.activation import silu_and_mul
from tokenspeed_sdk.ops.linear import linear
from tokenspeed_sdk.ops.norm import rms_norm
from tokenspeed_sdk.ops.op import Op, Result, Traits


def add_norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor,
    summed: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    *,
    gated: bool,
) -> torch.Tensor:
    """``add_rms_norm@1`` into other memory, ``linear@1``, and ``silu_and_mul@1`` where ``gated``.

    ``summed = x + residual``, rounded to its dtype; what follows starts from the rounded sum. The
    sum has memory of its own because many blocks of a kernel read the residual while one writes.
    A kernel need not round between the norm, the product and the activation.

    Args:
        x: [T, K] floating; left as it is.
        residual: [T, K] in the dtype of ``x``; left as it is.
        summed: [T, K] in the dtype of ``x``; written IN PLACE, never read; not the memory of ``x``
            or ``residual``.
        norm_weight: [K] in the dtype of ``x``.
        weight: [N, K] in the dtype of ``x``. A kernel gets what its ``pack_weight`` made of it.
        bias: [N] in the dtype of ``x``, or None.
        eps: positive, added to the mean of squares.
        gated: whether the product is gate, then up, and the result ``silu(gate) * up``.

    Returns:
        [T, N], or [T, N / 2] if ``gated``, in the dtype of ``x``.

    Raises:
        ValueError: a shape or dtype is wrong, ``eps`` is not positive, or ``summed`` is another
            argument's memory.
    """
    args = Args("add_norm_linear@1")
    args.tensor("x", x, "T K", FLOATS)
    check_sum(args, x, residual, summed, norm_weight)
    args.tensor("weight", weight, "N K", FLOATS)
    args.same_dtype(x=x, weight=weight)
    normed = add_norm(x, residual, summed, norm_weight, eps)
    return activated(linear(normed, weight, bias), gated)


def check_sum(
    args: Args,
    x: torch.Tensor,
    residual: torch.Tensor,
    summed: torch.Tensor,
    norm_weight: torch.Tensor,
) -> None:
    """What stands before the weight, beside an ``x`` that was checked."""
    args.tensor("residual", residual, "T K", FLOATS)
    args.tensor("summed", summed, "T K", FLOATS)
    args.tensor("norm_weight", norm_weight, "K", FLOATS)
    args.same_dtype(x=x, residual=residual, summed=summed, norm_weight=norm_weight)
    if summed.numel() and summed.data_ptr() in (x.data_ptr(), residual.data_ptr()):
        args.fail("summed", "must have memory of its own; got that of x or residual")


def add_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    summed: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """``summed = x + residual``, and its norm."""
    torch.add(x, residual, out=summed)
    return rms_norm(summed, norm_weight, eps)


def activated(product: torch.Tensor, gated: bool) -> torch.Tensor:
    """``silu(gate) * up`` of a gated product, else the product."""
    return silu_and_mul(product) if gated else product


def projected(traits: Traits, x: torch.Tensor, *_: object) -> Result:
    """Shape and dtype of the result, whatever the weight is packed to."""
    n = traits["n"]
    return ((x.shape[0], n // 2 if traits["gated"] else n), x.dtype)


ADD_NORM_LINEAR = Op(
    "add_norm_linear@1",
    add_norm_linear,
    traits=("n", "k", "bias", "gated"),
    keywords=("gated",),
    result=projected,
)
