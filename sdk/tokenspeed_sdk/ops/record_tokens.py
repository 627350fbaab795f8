# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""record_tokens@1: what a later step must know of the tokens that were drawn."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOAT32, INT32, INT64, Args
from tokenspeed_sdk.ops.adjust_logits import NO_PENALTY
from tokenspeed_sdk.ops.op import Op


def record_tokens(
    last_token: torch.Tensor,
    counts: torch.Tensor,
    penalties: torch.Tensor,
    slot: torch.Tensor,
    token: torch.Tensor,
) -> None:
    """Note each slot's last token, and count it where the slot has penalties.

    ``last_token[slot[e]] = token[e]``. Where the slot's penalties are not all 0 and the token is
    in the vocabulary, ``counts[slot[e], token[e]] += 2``: see ``adjust_logits@1``.

    Args:
        last_token: [S2] int64; changed in place.
        counts: [S2, V] int32; changed in place.
        penalties: [S2, 3] float32: repetition, frequency, presence.
        slot: [E] int64; only slots that are nobody's may stand twice.
        token: [E] int64; -1 for a row that has none.

    Raises:
        ValueError: a shape or dtype is wrong, or a slot is out of range.
    """
    args = Args("record_tokens@1")
    args.tensor("last_token", last_token, "S2", INT64)
    args.tensor("counts", counts, "S2 V", INT32)
    args.tensor("penalties", penalties, "S2 3", FLOAT32)
    args.tensor("slot", slot, "E", INT64)
    args.tensor("token", token, "E", INT64)
    args.within("slot", slot, 0, last_token.shape[0])
    for s, drawn in zip(slot.tolist(), token.tolist(), strict=True):
        last_token[s] = drawn
        if tuple(penalties[s].tolist()) != NO_PENALTY and 0 <= drawn < counts.shape[1]:
            counts[s, drawn] += 2


RECORD_TOKENS = Op("record_tokens@1", record_tokens, traits=("vocab",))
