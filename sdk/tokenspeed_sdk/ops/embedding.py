# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""embedding@1: rows of a table by token id."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOATS, INT64, Args
from tokenspeed_sdk.ops.op import Op, Result, Traits


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``out[t] = weight[ids[t]]``.

    Args:
        ids: [T] int64, each in [0, V).
        weight: [V, H] floating.

    Returns:
        [T, H] in the dtype of ``weight``; fresh memory.

    Raises:
        ValueError: a shape or dtype is wrong, or an id lies outside the table.
    """
    args = Args("embedding@1")
    args.tensor("ids", ids, "T", INT64)
    args.tensor("weight", weight, "V H", FLOATS)
    args.within("ids", ids, 0, weight.shape[0])
    return weight[ids]


def _result(traits: Traits, ids: torch.Tensor, weight: torch.Tensor) -> Result:
    return ((ids.shape[0], traits["hidden"]), weight.dtype)


EMBEDDING = Op("embedding@1", embedding, traits=("vocab", "hidden"), result=_result)
