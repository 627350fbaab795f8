# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a request adds to the logits of tokens, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tokenspeed.front.errors import Amount, InvalidRequest
from tokenspeed.front.ranges import checked_integer, checked_within
from tokenspeed.messages import MAX_BIASES, Bias

MAX_LOGIT_BIASES = 1024
MAX_BIAS = 100.0
"""As the OpenAI API has it; either sign."""
_DIGITS = 20
"""A token id has fewer."""
ALWAYS = (1 << 31) - 1
"""Beyond every position."""


def logit_biases(given: Mapping[Any, float] | None, vocab_size: int) -> tuple[Bias, ...]:
    """What is added to tokens, by id, all along."""
    if not isinstance(given, Mapping | None):
        raise InvalidRequest("logit_bias", given, "a mapping of token ids to numbers")
    given = given or {}
    if len(given) > MAX_LOGIT_BIASES:
        raise InvalidRequest(
            "logit_bias", Amount(f"{len(given)} tokens"), f"at most {MAX_LOGIT_BIASES}"
        )
    biases = {}
    for key, value in given.items():
        token = _token_key(key, vocab_size)
        if token in biases:
            raise InvalidRequest("logit_bias", key, "each token once")
        number = checked_within(f"logit_bias of token {token}", value, -MAX_BIAS, MAX_BIAS)
        biases[token] = Bias(token, number, ALWAYS)
    return tuple(biases.values())


def bans(
    stop_ids: tuple[int, ...], prompt_tokens: int, min_new: int, vocab_size: int
) -> tuple[Bias, ...]:
    """Keep end tokens away until there are ``min_new`` others."""
    if not min_new:
        return ()
    if len(stop_ids) >= vocab_size:
        raise InvalidRequest(
            "min_tokens", min_new, "0 where every token of the vocabulary ends the answer"
        )
    most = MAX_BIASES - MAX_LOGIT_BIASES
    if len(stop_ids) > most:
        raise InvalidRequest(
            "stop_token_ids",
            Amount(f"{len(stop_ids)} ids with the model's own end tokens"),
            f"at most {most} of them together with min_tokens",
        )
    until = prompt_tokens + min_new
    return tuple(Bias(token, -math.inf, until) for token in stop_ids)


def _token_key(key: object, vocab_size: int) -> int:
    """A token id, or one in decimal digits, as keys of JSON are."""
    digits = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < _DIGITS
    token = int(str(key)) if digits else key
    return checked_integer("logit_bias", token, 0, vocab_size - 1)
