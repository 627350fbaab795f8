# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""adjust_logits@1 and adjust_logits_verify@1: what requests ask to be likelier or less likely,
before tokens are drawn.

Repetition penalty: Keskar et al., 2019 (CTRL), arXiv:1909.05858, with the sign rule of
Transformers' ``RepetitionPenaltyLogitsProcessor``. Frequency and presence penalty and biases are
the OpenAI API's: ``mu[j] - c[j] * frequency - float(c[j] > 0) * presence``, ``logit_bias`` added.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    settings = Settings(wanted, penalties, counts, bias_id, bias_value, bias_until)
    settings.check(args, logits, kept, slot, position)
    for e, s in enumerate(slot.tolist()):
        _adjust(args, logits[e], kept[e], int(position[e]), s, settings, counts[s])


def adjust_logits_verify(
    logits: torch.Tensor,
    kept: torch.Tensor,
    slot: torch.Tensor,
    position: torch.Tensor,
    guess: torch.Tensor,
    wanted: torch.Tensor,
    penalties: torch.Tensor,
    counts: torch.Tensor,
    bias_id: torch.Tensor,
    bias_value: torch.Tensor,
    bias_until: torch.Tensor,
) -> None:
    """``adjust_logits`` where some rows stand behind guesses, which count as generated.

    Rows of one slot that follow each other are a run: the first stands behind tokens that are
    counted already, each other one behind the guesses of the run up to its own. So the count of a
    token is ``counts`` of the slot, plus 2 for each time that it is among those guesses.

    Args:
        logits, kept, slot, position: as in ``adjust_logits``.
        guess: [E] int32, the token that each row stands behind; of the first row of a run,
            whatever it is. Only one in [0, V) is counted.
        wanted, penalties, counts, bias_id, bias_value, bias_until: as in ``adjust_logits``.

    Raises:
        ValueError: a shape or dtype is wrong, or a slot or an id is out of range.
    """
    args = Args("adjust_logits_verify@1")
    settings = Settings(wanted, penalties, counts, bias_id, bias_value, bias_until)
    settings.check(args, logits, kept, slot, position)
    args.tensor("guess", guess, "E", INT32)
    before, seen = None, counts[0]
    for e, (s, token) in enumerate(zip(slot.tolist(), guess.tolist(), strict=True)):
        if s != before:
            before, seen = s, counts[s].clone()
        elif 0 <= token < len(seen):
            seen[token] += 2
        _adjust(args, logits[e], kept[e], int(position[e]), s, settings, seen)


@dataclass(frozen=True)
class Settings:
    """What each slot asks for; see ``adjust_logits``."""

    wanted: torch.Tensor
    penalties: torch.Tensor
    counts: torch.Tensor
    bias_id: torch.Tensor
    bias_value: torch.Tensor
    bias_until: torch.Tensor

    def check(
        self,
        args: Args,
        logits: torch.Tensor,
        kept: torch.Tensor,
        slot: torch.Tensor,
        position: torch.Tensor,
    ) -> None:
        """ValueError: one of all these has a wrong shape or dtype, or a slot is out of range."""
        args.tensor("logits", logits, "E V", FLOAT32)
        args.tensor("kept", kept, "E V", FLOAT32)
        args.tensor("slot", slot, "E", INT64)
        args.tensor("position", position, "E", INT64)
        args.tensor("wanted", self.wanted, "S2 1", INT32)
        args.tensor("penalties", self.penalties, "S2 3", FLOAT32)
        args.tensor("counts", self.counts, "S2 V", INT32)
        args.tensor("bias_id", self.bias_id, "S2 B", INT32)
        args.tensor("bias_value", self.bias_value, "S2 B", FLOAT32)
        args.tensor("bias_until", self.bias_until, "S2 B", INT32)
        args.within("slot", slot, 0, self.wanted.shape[0])


def _adjust(
    args: Args,
    row: torch.Tensor,
    kept: torch.Tensor,
    position: int,
    slot: int,
    asked: Settings,
    counts: torch.Tensor,
) -> None:
    """One row [V], in place; ``kept`` [V] is its copy, ``counts`` [V] what it stands behind."""
    if int(asked.wanted[slot, 0]):
        kept.copy_(row)
    if tuple(asked.penalties[slot].tolist()) != NO_PENALTY:
        _penalize(row, asked.penalties[slot], counts)
    ended = (asked.bias_until[slot] == 0).nonzero()
    listed = slice(int(ended[0]) if len(ended) else None)
    args.within("bias_id", asked.bias_id[slot, listed], 0, len(row))
    columns = (asked.bias_id, asked.bias_value, asked.bias_until)
    entries = (column[slot, listed].tolist() for column in columns)
    for token, value, until in zip(*entries, strict=True):
        if position < until:
            row[token] += value


def _penalize(row: torch.Tensor, penalties: torch.Tensor, counts: torch.Tensor) -> None:
    """Penalties of one row [V], in place."""
    repetition, frequency, presence = penalties
    times = counts >> 1
    repeated = torch.where(row > 0, row / repetition, row * repetition)
    row.copy_(torch.where(counts > 0, repeated, row))
    row.copy_(torch.where(times > 0, row - frequency * times.float(), row))
    row.copy_(torch.where(times > 0, row - presence, row))


ADJUST_LOGITS = Op("adjust_logits@1", adjust_logits, traits=("vocab",))
ADJUST_LOGITS_VERIFY = Op("adjust_logits_verify@1", adjust_logits_verify, traits=("vocab",))
