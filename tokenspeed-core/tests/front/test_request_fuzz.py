# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Whatever a caller sends: a request in which all is in range, or an error that names a field."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenspeed.front.errors import InvalidRequest
from tokenspeed.front.request import GenerationRequest, Limits
from tokenspeed.front.sampling_params import SamplingParams
from tokenspeed.messages import MAX_BIASES, Submit

LIMITS = Limits(max_model_len=64, vocab_size=50, eos_ids=(2, 0))
FIELDS = [field.name for field in msgspec.structs.fields(SamplingParams)]

numbers = (
    st.integers()
    | st.integers(-3, 60)
    | st.floats()
    | st.floats(-3, 3)
    | st.sampled_from([1 << 64, -(1 << 63), 10**400, np.float32(0.5), np.int64(3), np.nan])
)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=6) | st.binary(max_size=3)
junk: st.SearchStrategy[Any] = (
    scalars
    | st.lists(scalars, max_size=4)
    | st.dictionaries(numbers | st.text(max_size=6), scalars, max_size=4)
    | st.sampled_from([object(), 1j, {"5"}, range(3), float, ..., "\ud800"])
)
likely = {
    "logit_bias": st.dictionaries(
        st.integers(-1, 50) | st.integers(-1, 50).map(str), st.floats(-101, 101), max_size=5
    ),
    "stop_token_ids": st.lists(st.integers(-1, 50), max_size=60),
    "stop": st.lists(st.text(max_size=3), max_size=3),
}
prompts = st.lists(st.integers(-1, 50), max_size=70) | junk


def params() -> st.SearchStrategy[dict[str, Any]]:
    """A few fields: junk, or what is near their ranges."""
    values = {name: junk | numbers | likely.get(name, st.nothing()) for name in FIELDS}
    return st.lists(st.sampled_from(FIELDS), max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: values[name] for name in names})
    )


@settings(max_examples=600, deadline=None)
@given(prompts, params())
@example([1], {"seed": 10**5000})
@example([1], {"temperature": 10**400})
@example([1], {"logit_bias": {float("nan"): 1.0}})
@example([1], {"stop": {"a": 1}})
def test_in_range_or_refused(prompt: Any, given_params: dict[str, Any]) -> None:
    try:
        request = GenerationRequest.validated(prompt, SamplingParams(**given_params), LIMITS)
    except InvalidRequest as error:
        refused: InvalidRequest | None = error
    else:
        refused = None
    if refused is not None:
        assert refused.field.split()[0] in {*FIELDS, "prompt"}
        assert len(str(refused)) < 400
        return
    for submit in request.submits(list(range(request.n)), deadline_ms=0):
        check(msgspec.msgpack.decode(msgspec.msgpack.encode(submit), type=Submit))


def check(submit: Submit) -> None:
    """What the engine relies on."""
    tokens = np.frombuffer(submit.tokens, np.int32)
    assert 0 < len(tokens) < LIMITS.max_model_len
    assert tokens.min() >= 0
    assert tokens.max() < LIMITS.vocab_size
    assert 1 <= submit.max_new_tokens <= LIMITS.max_model_len - len(tokens)
    assert all(0 <= stop < LIMITS.vocab_size for stop in submit.stop_ids)
    assert -100 <= submit.priority <= 100
    asked = submit.sampling
    assert 0 <= asked.temperature < math.inf
    assert -1 <= asked.top_k < 1 << 31
    assert 0 < asked.top_p <= 1
    assert 0 <= asked.min_p <= 1
    assert 0 <= asked.seed < 1 << 64
    assert 0.01 <= asked.repetition_penalty <= 100
    assert abs(asked.frequency_penalty) <= 2
    assert abs(asked.presence_penalty) <= 2
    assert -1 <= asked.logprobs <= 20
    assert -1 <= asked.prompt_logprobs <= 20
    assert len(asked.biases) <= MAX_BIASES
    for bias in asked.biases:
        assert 0 <= bias.token < LIMITS.vocab_size
        assert abs(bias.value) <= 100 or bias.value == -math.inf
        assert 0 < bias.until < 1 << 31
