# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""logprobs@1: how likely a model thinks a token is, and which ones it thinks likeliest."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import INT32, INT64, Args
from tokenspeed_sdk.ops.op import Op

_REAL = (torch.float32, torch.float64)


def logprobs(
    logits: torch.Tensor,
    token: torch.Tensor,
    slot: torch.Tensor,
    wanted: torch.Tensor,
    top_id: torch.Tensor,
    top_value: torch.Tensor,
) -> None:
    """Write the log-probabilities that a row's slot wants, natural logarithms, into its row.

    With ``l = log_softmax(logits[e])``, ``s = slot[e]`` and ``w = wanted[s]``: nothing where w is
    0. Else entry 0 becomes the given token and its l, and entries 1 to w - 1 the tokens of the
    largest logits, by falling logit and, among equals, by rising id; the vocabulary may have fewer.
    What lies behind is left alone, and so is all of a row whose token is not in the vocabulary.

    Args:
        logits: [E, V] float32, none of them NaN where they are read.
        token: [E] int64.
        slot: [E] int64; only slots that are nobody's may stand twice.
        wanted: [S2, 1] int32, from 0 to K.
        top_id: [S2, K] int32; changed in place.
        top_value: [S2, K] float32; changed in place.

    Raises:
        ValueError: a shape or dtype is wrong, or a slot or a wish is out of range.
    """
    args = Args("logprobs@1")
    args.tensor("logits", logits, "E V", _REAL)
    args.tensor("token", token, "E", INT64)
    args.tensor("slot", slot, "E", INT64)
    args.tensor("wanted", wanted, "S2 1", INT32)
    args.tensor("top_id", top_id, "S2 K", INT32)
    args.tensor("top_value", top_value, "S2 K", _REAL)
    args.within("slot", slot, 0, wanted.shape[0])
    args.within("wanted", wanted, 0, top_id.shape[1] + 1)
    vocab = logits.shape[1]
    for e, (s, chosen) in enumerate(zip(slot.tolist(), token.tolist(), strict=True)):
        count = int(wanted[s, 0])
        if not count or not 0 <= chosen < vocab:
            continue
        row = logits[e].double().log_softmax(0)
        best = logits[e].sort(descending=True, stable=True).indices[: count - 1]
        ids = torch.cat((torch.tensor([chosen], device=best.device), best))
        top_id[s, : len(ids)] = ids.to(torch.int32)
        top_value[s, : len(ids)] = row[ids].to(top_value.dtype)


LOGPROBS = Op("logprobs@1", logprobs, traits=("vocab",))
