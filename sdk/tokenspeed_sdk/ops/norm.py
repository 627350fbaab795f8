# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""rms_norm@1 and add_rms_norm@1.

Root mean square layer normalisation: Zhang and Sennrich, 2019, arXiv:1910.07467.
"""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOATS, Args, compute_dtype
from tokenspeed_sdk.ops.op import Op, Result, Traits


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``y = x / sqrt(mean(x^2) + eps) * weight`` over the last dimension.

    Args:
        x: [..., H] floating, at least one leading dimension.
        weight: [H] in the dtype of ``x``.
        eps: positive, added to the mean of squares.

    Returns:
        The shape and dtype of ``x``; fresh memory.

    Raises:
        ValueError: a shape or dtype is wrong, or ``eps`` is not positive.
    """
    args = Args("rms_norm@1")
    _check_norm(args, x.flatten(0, -2), weight, eps)
    return _normalise(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add ``x`` to the residual stream in place, and normalise the sum.

    Args:
        x: [T, H] floating; left as it is.
        residual: [T, H] in the dtype of ``x``; becomes ``residual + x`` IN PLACE.
        weight: [H] in the dtype of ``x``.
        eps: positive, added to the mean of squares.

    Returns:
        ``rms_norm(residual, weight, eps)`` of the new residual: [T, H]; fresh memory.

    Raises:
        ValueError: a shape or dtype is wrong, or ``eps`` is not positive.
    """
    args = Args("add_rms_norm@1")
    _check_norm(args, x, weight, eps)
    args.tensor("residual", residual, "T H", FLOATS)
    args.same_dtype(x=x, residual=residual)
    residual += x
    return _normalise(residual, weight, eps)


def _check_norm(args: Args, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    args.tensor("x", x, "T H", FLOATS)
    args.tensor("weight", weight, "H", FLOATS)
    args.same_dtype(x=x, weight=weight)
    if not eps > 0:
        args.fail("eps", f"must be positive; got {eps}")


def _normalise(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.to(compute_dtype(x))
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * scale * weight.to(wide.dtype)).to(x.dtype)


def _result(traits: Traits, x: torch.Tensor, *_: object) -> Result:
    return (x.shape, x.dtype)


RMS_NORM = Op("rms_norm@1", rms_norm, traits=("hidden",), result=_result)
ADD_RMS_NORM = Op("add_rms_norm@1", add_rms_norm, traits=("hidden",), result=_result)
