# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""gather_rows@1: the rows that logits are wanted of."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOATS, INT64, Args
from tokenspeed_sdk.ops.op import Op, Result, Traits


def gather_rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """``out[e] = x[index[e]]``.

    Args:
        x: [T, H] floating.
        index: [E] int64, each in [0, T); may repeat.

    Returns:
        [E, H] in the dtype of ``x``; fresh memory.

    Raises:
        ValueError: a shape or dtype is wrong, or an index lies outside ``x``.
    """
    args = Args("gather_rows@1")
    args.tensor("x", x, "T H", FLOATS)
    args.tensor("index", index, "E", INT64)
    args.within("index", index, 0, x.shape[0])
    return x[index]


def _result(traits: Traits, x: torch.Tensor, index: torch.Tensor) -> Result:
    return ((index.shape[0], x.shape[1]), x.dtype)


GATHER_ROWS = Op("gather_rows@1", gather_rows, traits=(), result=_result)
