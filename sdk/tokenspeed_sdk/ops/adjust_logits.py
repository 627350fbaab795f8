# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""adjust_logits@1: what requests ask to be likelier or less likely, before tokens are drawn.

Repetition penalty: Keskar et al., 2019 (CTRL), arXiv:1909.05858, with the sign rule of
Transformers' ``RepetitionPenaltyLogitsProcessor``. Frequency and presence penalty and biases are
the OpenAI API's: ``mu[j] - c[j] * frequency - float(c[j] > 0) * presence``, ``logit_bias`` added.
"""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOAT32, INT32, INT64, Args
from tokenspeed_sdk.ops.op import Op

NO_PENALTY = (0.0, 0.0, 0.0)
"""Repetition, frequency and presence penalty of a slot without any."""


def adjust_logits(
    logits: torch.Tensor,
    kept: torch.Tensor,
    slot: torch.Tensor,
    position: torch.Tensor,
    wanted: torch.Tensor,
    penalties: torch.Tensor,
    counts: torch.Tensor,
    bias_id: torch.Tensor,
    bias_value: torch.Tensor,
    bias_until: torch.Tensor,
) -> None:
    """Keep the rows whose own log-probabilities are wanted, then adjust rows in place.

    A token's count c is 2 * (how often it was generated) + (whether it is in the prompt). For a row
    whose penalties are not all 0, each token with c > 0 goes through these steps, each of which
    rounds to float32:

    1. ``x = x / repetition if x > 0 else x * repetition``;
    2. if it was generated ``n = c // 2 > 0`` times: ``x = x - float32(frequency * n)``, then
       ``x = x - presence``.

    Then the slot's biases follow in their order: ``x[id] = x[id] + value``, for those whose
    ``until`` is greater than the row's position. A list ends at the first entry with ``until`` 0,
    or with the table. A value of -inf bans a token.

    A slot of zeros changes nothing and costs next to nothing.

    Args:
        logits: [E, V] float32; changed in place.
        kept: [E, V] float32; row e becomes the logits before any change where its slot's ``wanted``
            is not 0, and is left alone otherwise.
        slot: [E] int64, whose row it is; several where guesses are verified.
        position: [E] int64, position of the drawn token in its request.
        wanted: [S2, 1] int32.
        penalties: [S2, 3] float32: repetition, frequency, presence. Repetition is positive, or all
            three are 0.
        counts: [S2, V] int32.
        bias_id: [S2, B] int32, in [0, V) where it counts.
        bias_value: [S2, B] float32, finite or -inf.
        bias_until: [S2, B] int32.

    Raises:
        ValueError: a shape or dtype is wrong, or a slot or an id is out of range.
    """
    args = Args("adjust_logits@1")
    args.tensor("logits", logits, "E V", FLOAT32)
    args.tensor("kept", kept, "E V", FLOAT32)
    args.tensor("slot", slot, "E", INT64)
    args.tensor("position", position, "E", INT64)
    args.tensor("wanted", wanted, "S2 1", INT32)
    args.tensor("penalties", penalties, "S2 3", FLOAT32)
    args.tensor("counts", counts, "S2 V", INT32)
    args.tensor("bias_id", bias_id, "S2 B", INT32)
    args.tensor("bias_value", bias_value, "S2 B", FLOAT32)
    args.tensor("bias_until", bias_until, "S2 B", INT32)
    args.within("slot", slot, 0, wanted.shape[0])
    for e, s in enumerate(slot.tolist()):
        if int(wanted[s, 0]):
            kept[e] = logits[e]
        if tuple(penalties[s].tolist()) != NO_PENALTY:
            _penalize(logits[e], penalties[s], counts[s])
        ended = (bias_until[s] == 0).nonzero()
        listed = slice(int(ended[0]) if len(ended) else None)
        args.within("bias_id", bias_id[s, listed], 0, logits.shape[1])
        entries = (column[s, listed].tolist() for column in (bias_id, bias_value, bias_until))
        for token, value, until in zip(*entries, strict=True):
            if int(position[e]) < until:
                logits[e, token] += value


def _penalize(row: torch.Tensor, penalties: torch.Tensor, counts: torch.Tensor) -> None:
    """Penalties of one row [V], in place."""
    repetition, frequency, presence = penalties
    times = counts >> 1
    repeated = torch.where(row > 0, row / repetition, row * repetition)
    row.copy_(torch.where(counts > 0, repeated, row))
    row.copy_(torch.where(times > 0, row - frequency * times.float(), row))
    row.copy_(torch.where(times > 0, row - presence, row))


ADJUST_LOGITS = Op("adjust_logits@1", adjust_logits, traits=("vocab",))
