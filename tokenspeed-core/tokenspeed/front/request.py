# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The one request type below the gRPC service and below the offline ``LLM``.

    request = GenerationRequest.validated(tokens, SamplingParams(temperature=0.7), limits)

Nothing reaches the engine that did not pass here: every field has a range, and what is not built
is refused by name instead of being ignored.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenspeed_sdk.contracts.grammar import Constraint

from tokenspeed.front.caller import checked_priority, checked_salt, namespace_of
from tokenspeed.front.constraint import constraint_of
from tokenspeed.front.errors import Amount, InvalidRequest
from tokenspeed.front.thinking import thinking_after
from tokenspeed.messages import Marks, Sampling, Submit, Thinking

if TYPE_CHECKING:
    from tokenspeed.front.grammars import FrontGrammar, Grammars

MAX_N = 64
MAX_STOP_STRINGS = 32
MAX_STOP_STRING_LENGTH = 512
MAX_STOP_TOKEN_IDS = 256
GREEDY_BELOW = 1e-5
"""Lower temperatures count as 0: dividing logits by them would overflow."""

_FLOAT32_MAX = 3.4e38
_SEEDS = 1 << 64
_UNBUILT: tuple[tuple[str, object], ...] = (
    ("min_tokens", 0),
    ("frequency_penalty", 0),
    ("presence_penalty", 0),
    ("repetition_penalty", 1),
    ("logit_bias", {}),
    ("logprobs", False),
)
"""Fields with the only value they may have so far."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may ask for; names and defaults are the OpenAI API's where it has them.

    Attributes:
        max_tokens: upper bound of new tokens; None, or more than fits: up to the model's length.
        temperature: 0 takes the likeliest token.
        top_k: -1 or 0 for all tokens.
        n: answers to one prompt; answer i is drawn with seed + i.
        seed: None draws one. Equal seeds give equal answers, whatever else runs.
        stop: texts that end the answer; they are not part of it. None for none.
        stop_token_ids: token ids that end the answer, besides the model's own. None for none.
        ignore_eos: the model's own end tokens do not end the answer.
        skip_special_tokens: leave special tokens out of the text.
        keep_stop_token: leave the stop token that matched in the token ids.
        json_schema, regex, ebnf, structural_tag: what the answer must match, at most one of them; a
            schema as JSON text, ``"{}"`` for any JSON.
        priority: -100 to 100; higher goes first, and who waits long enough goes before it.
        salt: a text; only requests with the same one share cached prefixes. None is shared by all
            that have none.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    n: int = 1
    seed: int | None = None
    stop: Sequence[str] | None = ()
    stop_token_ids: Sequence[int] | None = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    keep_stop_token: bool = False
    priority: int = 0
    salt: str | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    # Not built yet: only these values pass.
    min_tokens: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[str, float] | None = {}
    logprobs: bool = False


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
        _check_unbuilt(params)
        n = _integer("n", params.n, 1, MAX_N)
        prompt = _prompt(tokens, limits)
        room = limits.max_model_len - len(prompt)
        stop_ids = _stop_token_ids(params.stop_token_ids, limits.vocab_size)
        constraint = constraint_of(params, limits.eos_ids)
        if not params.ignore_eos:
            stop_ids = limits.eos_ids + stop_ids
        return cls(
            tokens=prompt.tobytes(),
            prompt_tokens=len(prompt),
            n=n,
            max_new_tokens=_max_new_tokens(params.max_tokens, room),
            stop_ids=tuple(dict.fromkeys(stop_ids)),
            stop=_stop_strings(params.stop),
            sampling=resolve_sampling(params),
            skip_special_tokens=params.skip_special_tokens,
            keep_stop_token=params.keep_stop_token,
            priority=checked_priority(params.priority),
            namespace=_namespace(params.salt, limits),
            constraint=constraint,
            thinking=thinking_after(prompt, limits.marks, limits.eos_ids) if constraint else None,
        )

    async def compiled_with(self, grammars: Grammars) -> GenerationRequest:
        """Ready to run: with its constraint compiled, if it has one. InvalidRequest."""
        if self.constraint is None:
            return self
        grammar = await grammars.compile(self.constraint)
        return msgspec.structs.replace(self, grammar=grammar)

    def submits(self, ids: Sequence[int], deadline_ms: int) -> list[Submit]:
        """One Submit for each of the n sequences, numbered ``ids``; deadline 0 for none."""
        first = self.sampling
        return [
            Submit(
                request=request,
                tokens=self.tokens,
                max_new_tokens=self.max_new_tokens,
                stop_ids=list(self.stop_ids),
                sampling=msgspec.structs.replace(first, seed=(first.seed + i) % _SEEDS),
                namespace=self.namespace,
                deadline_ms=deadline_ms,
                priority=self.priority,
                grammar=self.grammar.number if self.grammar is not None else 0,
                thinking=self.thinking,
            )
            for i, request in enumerate(ids)
        ]


def resolve_sampling(params: SamplingParams) -> Sampling:
    """Range-checked sampling scalars; draws the seed when there is none."""
    temperature = _number("temperature", params.temperature, "a finite number, at least 0")
    top_p = _number("top_p", params.top_p, "above 0 and at most 1")
    min_p = _number("min_p", params.min_p, "from 0 to 1")
    if not 0 <= temperature <= _FLOAT32_MAX:
        raise InvalidRequest("temperature", params.temperature, "a finite number, at least 0")
    if not 0 < top_p <= 1:
        raise InvalidRequest("top_p", params.top_p, "above 0 and at most 1")
    if not 0 <= min_p <= 1:
        raise InvalidRequest("min_p", params.min_p, "from 0 to 1")
    seed = random.getrandbits(64) if params.seed is None else params.seed
    return Sampling(
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_k=_integer("top_k", params.top_k, -1, (1 << 31) - 1),
        top_p=top_p,
        min_p=min_p,
        seed=_integer("seed", seed, 0, _SEEDS - 1),
    )


def _check_unbuilt(params: SamplingParams) -> None:
    for field, only in _UNBUILT:
        value = getattr(params, field)
        if value is not None and value != only:
            raise InvalidRequest(field, value, f"{only!r}: nothing else is built yet")


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
    if not isinstance(tokens, Sequence | np.ndarray) or np.ndim(tokens) == 0:
        raise InvalidRequest("prompt", tokens, "a flat list of token ids")
    if len(tokens) == 0:
        raise InvalidRequest("prompt", [], "at least 1 token")
    if len(tokens) + 1 > limits.max_model_len:
        raise InvalidRequest(
            "prompt",
            Amount(f"{len(tokens)} tokens"),
            f"at most {limits.max_model_len - 1} tokens: with 1 new token it would be "
            f"{len(tokens) + 1}, and the model's length is {limits.max_model_len}",
        )
    ids = np.asarray(tokens)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InvalidRequest("prompt", tokens, "a flat list of token ids")
    outside = np.flatnonzero((ids < 0) | (ids >= limits.vocab_size))
    if len(outside):
        where = int(outside[0])
        raise InvalidRequest(
            f"prompt token {where}", int(ids[where]), f"from 0 to {limits.vocab_size - 1}"
        )
    return ids.astype(np.int32)


def _max_new_tokens(asked: int | None, room: int) -> int:
    if asked is None:
        return room
    return min(_integer("max_tokens", asked, 1, None), room)


def _stop_strings(stop: Sequence[str] | None) -> tuple[str, ...]:
    if not isinstance(stop, Collection | None):
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
    if not isinstance(ids, Collection | None):
        raise InvalidRequest("stop_token_ids", ids, "a list of token ids")
    ids = tuple(ids or ())
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            "stop_token_ids", Amount(f"{len(ids)} ids"), f"at most {MAX_STOP_TOKEN_IDS}"
        )
    return tuple(_integer("stop_token_ids", id_, 0, vocab_size - 1) for id_ in ids)


def _integer(field: str, value: object, low: int, high: int | None) -> int:
    inside = (
        isinstance(value, int)
        and not isinstance(value, bool)
        and low <= value
        and (high is None or value <= high)
    )
    if not inside:
        allowed = f"at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidRequest(field, value, f"an integer {allowed}")
    assert isinstance(value, int)
    return value


def _number(field: str, value: object, allowed: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequest(field, value, allowed)
    return float(value)
