# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a request says its answer must match."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.grammar import KINDS, Constraint

from tokenspeed.front.errors import Amount, InvalidRequest

if TYPE_CHECKING:
    from tokenspeed.front.sampling_params import SamplingParams

MAX_LENGTH = 1 << 20
"""Characters of a constraint."""


def constraint_of(params: SamplingParams, eos_ids: tuple[int, ...]) -> Constraint | None:
    """The one that is given. InvalidRequest: several are, or it cannot be kept to."""
    given = [kind for kind in KINDS if getattr(params, kind) is not None]
    if not given:
        return None
    kind, *others = given
    text = getattr(params, kind)
    if others:
        raise InvalidRequest(others[0], getattr(params, others[0]), f"absent beside {kind}")
    if not isinstance(text, str):
        raise InvalidRequest(kind, text, "a text")
    if len(text) > MAX_LENGTH:
        raise InvalidRequest(
            kind, Amount(f"{len(text)} characters"), f"at most {MAX_LENGTH} characters"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(kind, text, "a text without lone surrogates") from error
    if params.ignore_eos:
        raise InvalidRequest(
            "ignore_eos", True, f"False with {kind}: an answer ends where its constraint does"
        )
    if params.min_tokens:
        raise InvalidRequest(
            "min_tokens",
            params.min_tokens,
            f"0 with {kind}: the constraint says where an answer ends",
        )
    if not eos_ids:
        raise InvalidRequest(
            kind, text, "absent, because this model names no token that ends an answer"
        )
    return Constraint(kind, text)
