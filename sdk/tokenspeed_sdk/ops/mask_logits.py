# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""mask_logits@1: takes away the tokens that a grammar forbids."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOAT32, INT32, Args
from tokenspeed_sdk.ops.op import Op


def mask_logits(logits: torch.Tensor, mask: torch.Tensor, row: torch.Tensor) -> None:
    """``logits[row[m], v] = -inf`` where bit ``v % 32`` of ``mask[m, v // 32]`` is 0; in place.

    Rows that no mask names stay as they are, and cost nothing. Bits past the vocabulary are of no
    account.

    Args:
        logits: [E, V] float32.
        mask: [M, ceil(V / 32)] int32; bit 1 keeps a logit as it is, a NaN too.
        row: [M] int32, each in [-1, E); -1 stands for a mask that is not used. No row twice.

    Raises:
        ValueError: a shape or dtype is wrong, or a row lies outside the logits.
    """
    args = Args("mask_logits@1")
    args.tensor("logits", logits, "E V", FLOAT32)
    args.tensor("mask", mask, f"M {-(-logits.shape[1] // 32)}", INT32)
    args.tensor("row", row, "M", INT32)
    args.within("row", row, -1, logits.shape[0])
    bits = torch.arange(logits.shape[1], device=logits.device)
    for words, target in zip(mask, row.tolist(), strict=True):
        if target >= 0:
            kept = (words[bits // 32] >> (bits % 32)) & 1
            logits[target].masked_fill_(kept == 0, float("-inf"))


MASK_LOGITS = Op("mask_logits@1", mask_logits, traits=("vocab",))
