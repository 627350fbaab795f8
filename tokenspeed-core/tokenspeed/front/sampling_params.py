# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a caller may ask for, and how the engine draws by it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec

from tokenspeed.front.errors import InvalidRequest
from tokenspeed.front.ranges import check_flag, checked_integer, checked_number, checked_within
from tokenspeed.messages import MAX_TOP_LOGPROBS, Bias, Sampling

MAX_PENALTY = 2.0
"""Of frequency and presence, as the OpenAI API has it; either sign."""
REPETITION_PENALTIES = (0.01, 100.0)
GREEDY_BELOW = 1e-5
"""Lower temperatures count as 0: dividing logits by them would overflow."""

_FLOAT32_MAX = 3.4e38
SEEDS = 1 << 64


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may ask for; names and defaults are the OpenAI API's where it has them.

    Attributes:
        max_tokens: upper bound of new tokens; None, or more than fits: up to the model's length.
        temperature: 0 takes the likeliest token.
        top_k: -1 or 0 for all tokens.
        n: answers to one prompt; answer i is drawn with seed + i.
        seed: None draws one. Equal seeds draw the same from equal logits, whatever else runs.
        stop: texts that end the answer; they are not part of it. None for none.
        stop_token_ids: token ids that end the answer, besides the model's own. None for none.
        ignore_eos: the model's own end tokens do not end the answer.
        min_tokens: so many tokens come before any end token can, and before a stop string counts.
        frequency_penalty: taken from a token's logit for each time that it was generated.
        presence_penalty: taken from it once if it was generated.
        repetition_penalty: divides the logits of tokens of prompt and answer that are above 0, and
            multiplies those that are not. 1 for none.
        logit_bias: token id to what is added to its logit. None for none.
        logprobs: tell the log-probability of each token of the answer: by the model's own logits,
            before penalties, biases, temperature and filters.
        top_logprobs: with it, those of so many likeliest tokens; 0 to 20.
        prompt_logprobs: the same of each token of the prompt but the first, with so many likeliest
            tokens, 0 to 20; None for none. All of the prompt is computed, none of it read from the
            cache. In Python alone: the gateway's protocol has no place for it.
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
    min_tokens: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[str, float] | Mapping[int, float] | None = {}
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None


def resolve_sampling(params: SamplingParams, biases: tuple[Bias, ...] = ()) -> Sampling:
    """Range-checked sampling scalars; draws the seed when there is none."""
    temperature = checked_number("temperature", params.temperature, "a finite number, at least 0")
    top_p = checked_number("top_p", params.top_p, "above 0 and at most 1")
    min_p = checked_number("min_p", params.min_p, "from 0 to 1")
    if not 0 <= temperature <= _FLOAT32_MAX:
        raise InvalidRequest("temperature", params.temperature, "a finite number, at least 0")
    if not 0 < top_p <= 1:
        raise InvalidRequest("top_p", params.top_p, "above 0 and at most 1")
    if not 0 <= min_p <= 1:
        raise InvalidRequest("min_p", params.min_p, "from 0 to 1")
    seed = random.getrandbits(64) if params.seed is None else params.seed
    return Sampling(
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_k=checked_integer("top_k", params.top_k, -1, (1 << 31) - 1),
        top_p=top_p,
        min_p=min_p,
        seed=checked_integer("seed", seed, 0, SEEDS - 1),
        repetition_penalty=checked_within(
            "repetition_penalty", params.repetition_penalty, *REPETITION_PENALTIES
        ),
        frequency_penalty=checked_within(
            "frequency_penalty", params.frequency_penalty, -MAX_PENALTY, MAX_PENALTY
        ),
        presence_penalty=checked_within(
            "presence_penalty", params.presence_penalty, -MAX_PENALTY, MAX_PENALTY
        ),
        biases=biases,
        logprobs=_logprobs(params),
        prompt_logprobs=-1
        if params.prompt_logprobs is None
        else checked_integer("prompt_logprobs", params.prompt_logprobs, 0, MAX_TOP_LOGPROBS),
    )


def _logprobs(params: SamplingParams) -> int:
    """How many of the likeliest tokens are told; -1: not even those that are drawn."""
    check_flag("logprobs", params.logprobs)
    top = checked_integer("top_logprobs", params.top_logprobs, 0, MAX_TOP_LOGPROBS)
    if top and not params.logprobs:
        raise InvalidRequest("top_logprobs", top, "0 without logprobs")
    return top if params.logprobs else -1
