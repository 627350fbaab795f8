# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Log-probabilities as callers see them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np

from tokenspeed import messages


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Natural logarithms of how likely the model thought tokens at one position.

    By its own logits: before penalties, biases, grammar, temperature and filters. So the token that
    was drawn need not be among the likeliest.

    Attributes:
        token, logprob: of the token that stands there.
        top: the likeliest tokens and theirs, by falling log-probability.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]] = []


PromptLogprobs: TypeAlias = "list[TokenLogprobs | None]"
"""Of each token of a prompt; nothing predicts the first."""


def read_prompt_logprobs(message: messages.PromptLogprobs) -> dict[int, TokenLogprobs]:
    """What the engine tells of tokens of a prompt, by position."""
    ids = np.frombuffer(message.ids, np.int32).reshape(-1, message.count).tolist()
    values = np.frombuffer(message.values, np.float32).reshape(-1, message.count).tolist()
    return {
        position: TokenLogprobs(i[0], v[0], list(zip(i[1:], v[1:], strict=True)))
        for position, (i, v) in enumerate(zip(ids, values, strict=True), start=message.first)
    }


def read_logprobs(message: messages.TokenLogprobs) -> TokenLogprobs:
    """What the engine tells of one token."""
    ids = np.frombuffer(message.ids, np.int32).tolist()
    values = np.frombuffer(message.values, np.float32).tolist()
    return TokenLogprobs(ids[0], values[0], list(zip(ids[1:], values[1:], strict=True)))
