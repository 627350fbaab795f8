# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The one request type below the gRPC service and below the offline ``LLM``.

    request = GenerationRequest.validated(tokens, SamplingParams(temperature=0.7), limits)

Nothing reaches the engine that did not pass here: every field has a range, and what is not built
is refused by name instead of being ignored.
"""

from __future__ import annotations

import random
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenspeed_sdk.contracts.grammar import Constraint

from tokenspeed.front.biases import bans, logit_biases
from tokenspeed.front.caller import checked_priority, checked_salt, namespace_of
from tokenspeed.front.constraint import constraint_of
from tokenspeed.front.errors import Amount, InvalidRequest
from tokenspeed.front.ranges import (
    check_flag,
    checked_integer,
)
from tokenspeed.front.sampling_params import SEEDS, SamplingParams, resolve_sampling
from tokenspeed.front.thinking import thinking_after
from tokenspeed.messages import (
    Marks,
    Sampling,
    Submit,
    Thinking,
)

if TYPE_CHECKING:
    from tokenspeed.front.grammars import FrontGrammar, Grammars

MAX_N = 64
MAX_STOP_STRINGS = 32
MAX_STOP_STRING_LENGTH = 512
MAX_STOP_TOKEN_IDS = 256


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What this engine and model can serve.

    Attributes:
        max_model_len: tokens of prompt and answer together.
        eos_ids: the model's own end tokens.
        isolate_tenants: a request without a salt is refused.
        marks: between which the model may think before what a constraint is about.
    """

    max_model_len: int
    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    isolate_tenants: bool = False
    marks: Marks | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request in which every value is within its range. Made by ``validated`` only.

    Attributes:
        tokens: the prompt, int32 bytes.
        max_new_tokens: at least 1, and prompt and answer fit the model.
        min_new_tokens: at most ``max_new_tokens``; a stop string counts behind so many only.
        stop_ids: end tokens, the model's own included unless they are ignored.
        sampling: resolved; sequence i of n takes seed + i.
        namespace: of the salt; part of every key in the prefix cache.
        constraint: what each answer must match.
        grammar: the same, compiled; from ``compiled_with``.
        thinking: what may come before it.
    """

    tokens: bytes
    prompt_tokens: int
    n: int
    max_new_tokens: int
    min_new_tokens: int
    stop_ids: tuple[int, ...]
    stop: tuple[str, ...]
    sampling: Sampling
    skip_special_tokens: bool
    keep_stop_token: bool
    priority: int
    namespace: int
    constraint: Constraint | None = None
    grammar: FrontGrammar | None = None
    thinking: Thinking | None = None

    @classmethod
    def validated(
        cls, tokens: Sequence[int], params: SamplingParams, limits: Limits
    ) -> GenerationRequest:
        """The only way to make one. InvalidRequest names the field, its value and its range."""
        n = checked_integer("n", params.n, 1, MAX_N)
        for field in ("ignore_eos", "skip_special_tokens", "keep_stop_token"):
            check_flag(field, getattr(params, field))
        prompt = _prompt(tokens, limits)
        room = limits.max_model_len - len(prompt)
        stop_ids = _stop_token_ids(params.stop_token_ids, limits.vocab_size)
        constraint = constraint_of(params, limits.eos_ids)
        if not params.ignore_eos:
            stop_ids = limits.eos_ids + stop_ids
        stop_ids = tuple(dict.fromkeys(stop_ids))
        max_new = _max_new_tokens(params.max_tokens, room)
        min_new = checked_integer("min_tokens", params.min_tokens, 0, max_new)
        banned = bans(stop_ids, len(prompt), min_new, limits.vocab_size)
        biases = logit_biases(params.logit_bias, limits.vocab_size)
        return cls(
            tokens=prompt.tobytes(),
            prompt_tokens=len(prompt),
            n=n,
            max_new_tokens=max_new,
            min_new_tokens=min_new,
            stop_ids=stop_ids,
            stop=_stop_strings(params.stop),
            sampling=resolve_sampling(params, biases + banned),
            skip_special_tokens=params.skip_special_tokens,
            keep_stop_token=params.keep_stop_token,
            priority=checked_priority(params.priority),
            namespace=_namespace(params.salt, limits),
            constraint=constraint,
            thinking=thinking_after(prompt, limits.marks, limits.eos_ids) if constraint else None,
        )

    async def compiled_with(self, grammars: Grammars) -> GenerationRequest:
        """Ready to run: with its constraint compiled, if it has one. As ``Grammars.compile``."""
        if self.constraint is None:
            return self
        grammar = await grammars.compile(self.constraint, self.namespace)
        return msgspec.structs.replace(self, grammar=grammar)

    def submits(self, ids: Sequence[int], deadline_ms: int) -> list[Submit]:
        """One Submit for each of the n sequences, numbered ``ids``; deadline 0 for none."""
        first = self.sampling
        others = msgspec.structs.replace(first, prompt_logprobs=-1)
        of_prompt = first.prompt_logprobs >= 0
        return [
            Submit(
                request=request,
                tokens=self.tokens,
                max_new_tokens=self.max_new_tokens,
                stop_ids=list(self.stop_ids),
                sampling=msgspec.structs.replace(
                    others if i else first, seed=(first.seed + i) % SEEDS
                ),
                # A prompt that is told of shares nothing, so that all of it is computed.
                namespace=random.getrandbits(64) if of_prompt and not i else self.namespace,
                deadline_ms=deadline_ms,
                priority=self.priority,
                grammar=self.grammar.number if self.grammar is not None else 0,
                thinking=self.thinking,
            )
            for i, request in enumerate(ids)
        ]


def _namespace(salt: str | None, limits: Limits) -> int:
    if salt is None and limits.isolate_tenants:
        raise InvalidRequest(
            "salt",
            None,
            "given, because this server isolates tenants (--isolate-tenants): let the proxy in "
            "front of it send the header x-request-id: s=<salt of the tenant>,<own id>",
        )
    return namespace_of(None if salt is None else checked_salt(salt))


def _prompt(tokens: Sequence[int], limits: Limits) -> NDArray[np.int32]:
    ids = _flat_integers(tokens)
    if ids is None:
        raise InvalidRequest("prompt", tokens, "a flat list of token ids")
    if len(ids) == 0:
        raise InvalidRequest("prompt", Amount("empty"), "at least 1 token")
    if len(ids) + 1 > limits.max_model_len:
        raise InvalidRequest(
            "prompt",
            Amount(f"{len(ids)} tokens"),
            f"at most {limits.max_model_len - 1} tokens: with 1 new token it would be "
            f"{len(ids) + 1}, and the model's length is {limits.max_model_len}",
        )
    outside = np.flatnonzero((ids < 0) | (ids >= limits.vocab_size))
    if len(outside):
        where = int(outside[0])
        raise InvalidRequest(
            f"prompt token {where}", int(ids[where]), f"from 0 to {limits.vocab_size - 1}"
        )
    return ids.astype(np.int32)


def _flat_integers(tokens: object) -> NDArray[Any] | None:
    """As an array of one dimension; None where it is none of integers."""
    if not isinstance(tokens, Sequence | np.ndarray) or isinstance(tokens, str | bytes):
        return None
    try:
        ids = np.asarray(tokens)
    except (ValueError, TypeError, OverflowError):  # ragged, or not even numbers
        return None
    whole = ids.dtype.kind in "iu" or ids.size == 0
    return ids if ids.ndim == 1 and whole else None


def _max_new_tokens(asked: int | None, room: int) -> int:
    if asked is None:
        return room
    return min(checked_integer("max_tokens", asked, 1, None), room)


def _stop_strings(stop: Sequence[str] | None) -> tuple[str, ...]:
    if not isinstance(stop, Sequence | Set | None):
        raise InvalidRequest("stop", stop, "a string or a list of strings")
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            "stop", Amount(f"{len(strings)} strings"), f"at most {MAX_STOP_STRINGS}"
        )
    for string in strings:
        if not isinstance(string, str) or not 0 < len(string) <= MAX_STOP_STRING_LENGTH:
            raise InvalidRequest(
                "stop", string, f"strings of 1 to {MAX_STOP_STRING_LENGTH} characters"
            )
    return tuple(dict.fromkeys(strings))


def _stop_token_ids(ids: Sequence[int] | None, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(ids, Sequence | Set | None):
        raise InvalidRequest("stop_token_ids", ids, "a list of token ids")
    ids = tuple(ids or ())
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            "stop_token_ids", Amount(f"{len(ids)} ids"), f"at most {MAX_STOP_TOKEN_IDS}"
        )
    return tuple(checked_integer("stop_token_ids", id_, 0, vocab_size - 1) for id_ in ids)
