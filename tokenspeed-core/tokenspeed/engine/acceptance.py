# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which of the tokens that a step draws count, found on the device.

The scheduler decides by the same rule what counts, once the step has ended. A next step that
continues a row takes its input from what is found here, and penalties their counts, so that nothing
has to be brought back.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

NOBODY = 0
"""A slot."""


class Accepted(NamedTuple):
    """The tokens that count are the last of each row, and those in front of it.

    Attributes:
        last: [E] int64, the slot behind whose row a token is the last that counts, else NOBODY.
        before: [E] bool, whether it counts and the one behind it does, too.
    """

    last: torch.Tensor
    before: torch.Tensor


def find_accepted(slot: torch.Tensor, guess: torch.Tensor, token: torch.Tensor) -> Accepted:
    """The tokens of rows that count.

    A token counts unless the guess that it was drawn behind, or one in front of that, is another
    than was drawn there. One that is none (-1) does not count either, but as the first of its row.

    Args:
        slot: [E] int64, whose row it is; a row's tokens stand together, no two rows of one slot do.
        guess: [E] int64, the input that each was drawn behind; of a row's first, whatever it is.
        token: [E] int64, what was drawn.
    """
    follows = slot[1:] == slot[:-1]
    wrong = follows & ((guess[1:] != token[:-1]) | (token[1:] < 0))
    follows, wrong = (torch.nn.functional.pad(each, (1, 0)) for each in (follows, wrong))
    missed = wrong.cumsum(0)
    in_front = torch.where(follows, 0, missed).cummax(0).values  # it only rises, row to row too
    counts = missed == in_front
    goes_on = torch.nn.functional.pad((counts & follows)[1:], (0, 1))
    return Accepted(torch.where(counts & ~goes_on, slot, NOBODY), goes_on)
