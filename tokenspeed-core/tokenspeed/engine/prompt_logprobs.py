# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Log-probabilities of prompt tokens: computed beside a step's prefill rows, a slice at a time.

Every position needs logits, so a chunk of a prompt would need its length times the vocabulary; in
slices it needs as little as a batch that decodes. Steps of prompts are launched, not replayed, so
shapes may be what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed.engine.buffers import LOGPROBS
from tokenspeed.messages import PromptLogprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from tokenspeed_sdk.contracts.kernel import BoundKernel
    from tokenspeed_sdk.contracts.model import Model
    from tokenspeed_sdk.contracts.platform import Device

SLICE = 64
"""Positions whose logits are in memory at once."""


@dataclass(frozen=True)
class PromptWish:
    """What one prefill row of a step is to tell of its prompt.

    Attributes:
        first: position of the first token that is told of; the one before it predicts it.
        row: of the step's hidden states, that of the token before.
        count: entries of each position: the token, and how many of the likeliest.
        targets: int64 [n] on the host, the tokens.
        found: int32 [n, 2 * LOGPROBS] on the host, once the step has ended.
    """

    request: int
    first: int
    row: int
    count: int
    targets: torch.Tensor
    found: torch.Tensor

    def result(self) -> PromptLogprobs:
        """For the front."""
        ids, values = np.hsplit(self.found.numpy(), 2)
        columns = (ids[:, : self.count].tobytes(), values[:, : self.count].tobytes())
        return PromptLogprobs(self.request, self.first, self.count, *columns)


def make_wish(
    device: Device,
    request: int,
    row: int,
    computed: tuple[int, int],
    top: int,
    history: tuple[NDArray[np.int32], int],
) -> PromptWish | None:
    """Of a prefill row that computes positions [start, end); None if none of the prompt follows.

    Args:
        row: where its first token stands in the step.
        top: how many of the likeliest tokens.
        history: the request's tokens, and how many of them are the prompt.
    """
    (start, end), (tokens, prompt) = computed, history
    told = tokens[start + 1 : min(end + 1, prompt)]
    if not len(told):
        return None
    targets = device.host_buffer((len(told),), "int64")
    targets.numpy()[:] = told
    found = device.host_buffer((len(told), 2 * LOGPROBS), "int32")
    return PromptWish(request, start + 1, row, top + 1, targets, found)


def find_prompt_logprobs(
    model: Model, logprobs: BoundKernel, hidden: torch.Tensor, wishes: Sequence[PromptWish]
) -> None:
    """Queue it, for hidden states [tokens, hidden] of a step."""
    for wish in wishes:
        for at in range(0, len(wish.targets), SLICE):
            part = slice(at, at + SLICE)
            _find(model, logprobs, hidden[wish.row :][: len(wish.targets)][part], wish, part)


def _find(
    model: Model, logprobs: BoundKernel, hidden: torch.Tensor, wish: PromptWish, part: slice
) -> None:
    rows, device = len(hidden), hidden.device
    slot = torch.arange(rows, device=device)
    wanted = torch.full((rows, 1), wish.count, dtype=torch.int32, device=device)
    found = torch.zeros((rows, 2 * LOGPROBS), dtype=torch.int32, device=device)
    token = wish.targets[part].to(device, non_blocking=True)
    values = found[:, LOGPROBS:].view(torch.float32)
    logprobs(model.logits(hidden), token, slot, wanted, found[:, :LOGPROBS], values)
    wish.found[part].copy_(found, non_blocking=True)
