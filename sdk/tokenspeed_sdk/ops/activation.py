# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""silu_and_mul@1: the gated activation of a SwiGLU block (Shazeer, 2020, arXiv:2002.05202)."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOATS, Args, compute_dtype
from tokenspeed_sdk.ops.op import Op, Result, Traits


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """``silu(x[:, :I]) * x[:, I:]`` with ``silu(g) = g / (1 + exp(-g))``.

    Args:
        x: [T, 2 I] floating: gate, then up.

    Returns:
        [T, I] in the dtype of ``x``.

    Raises:
        ValueError: a shape or dtype is wrong.
    """
    args = Args("silu_and_mul@1")
    args.tensor("x", x, "T 2I", FLOATS)
    if x.shape[1] % 2:
        args.fail("x", f"must hold gate and up, an even number of columns; got {x.shape[1]}")
    gate, up = x.to(compute_dtype(x)).chunk(2, dim=1)
    return (gate * gate.sigmoid() * up).to(x.dtype)


def _result(traits: Traits, x: torch.Tensor) -> Result:
    return ((x.shape[0], traits["inter"]), x.dtype)


SILU_AND_MUL = Op("silu_and_mul@1", silu_and_mul, traits=("inter",), result=_result)
