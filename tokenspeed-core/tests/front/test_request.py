# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenspeed.front.errors import InvalidRequest
from tokenspeed.front.request import GenerationRequest, Limits, SamplingParams
from tokenspeed.front.thinking import find_marks
from tokenspeed.messages import Thinking
from tokenspeed_sdk.contracts.grammar import KINDS, Constraint

LIMITS = Limits(max_model_len=16, vocab_size=100, eos_ids=(2, 0))


def validated(tokens: Any = (5, 6), **params: Any) -> GenerationRequest:
    return GenerationRequest.validated(tokens, SamplingParams(**params), LIMITS)


def test_none_is_no_stop() -> None:
    request = validated(stop=None, stop_token_ids=None, logit_bias=None)
    assert (request.stop, request.stop_ids) == ((), LIMITS.eos_ids)


BAD = [
    ("stop", 5, "a string or a list of strings"),
    ("stop_token_ids", 5, "a list of token ids"),
    ("max_tokens", 0, "at least 1"),
    ("max_tokens", -1, "at least 1"),
    ("max_tokens", 1.5, "an integer"),
    ("temperature", -0.1, "at least 0"),
    ("temperature", math.nan, "finite"),
    ("temperature", math.inf, "finite"),
    ("temperature", 1e300, "finite"),
    ("temperature", "hot", "finite"),
    ("temperature", True, "finite"),
    ("top_p", 0.0, "above 0 and at most 1"),
    ("top_p", 1.1, "above 0 and at most 1"),
    ("top_p", math.nan, "above 0 and at most 1"),
    ("top_k", -2, "from -1 to"),
    ("top_k", 1 << 31, "from -1 to"),
    ("min_p", -0.1, "from 0 to 1"),
    ("min_p", 1.1, "from 0 to 1"),
    ("n", 0, "from 1 to 64"),
    ("n", 65, "from 1 to 64"),
    ("n", 5_000_000, "from 1 to 64"),
    ("seed", -1, "from 0 to 18446744073709551615"),
    ("seed", 1 << 64, "from 0 to 18446744073709551615"),
    ("stop", "", "1 to 512 characters"),
    ("stop", ["a", ""], "1 to 512 characters"),
    ("stop", ["x" * 513], "1 to 512 characters"),
    ("stop", [7], "1 to 512 characters"),
    ("stop", ["a"] * 33, "at most 32"),
    ("stop_token_ids", [100], "from 0 to 99"),
    ("stop_token_ids", [-1], "from 0 to 99"),
    ("stop_token_ids", [1] * 257, "at most 256"),
    ("priority", 101, "an integer from -100 to 100"),
    ("priority", -101, "an integer from -100 to 100"),
    ("priority", 1.0, "an integer from -100 to 100"),
    ("priority", True, "an integer from -100 to 100"),
    ("salt", "", "1 to 128 characters"),
    ("salt", "x" * 129, "1 to 128 characters"),
    ("salt", b"x", "1 to 128 characters"),
    ("salt", "\ud800", "without lone surrogates"),
    ("min_tokens", 1, "0: nothing else is built yet"),
    ("frequency_penalty", 0.5, "0: nothing else is built yet"),
    ("presence_penalty", 0.5, "0: nothing else is built yet"),
    ("repetition_penalty", 1.1, "1: nothing else is built yet"),
    ("logit_bias", {"5": 1.0}, "{}: nothing else is built yet"),
    ("logprobs", True, "False: nothing else is built yet"),
    ("json_schema", {"type": "object"}, "a text"),
    ("structural_tag", 5, "a text"),
    ("regex", "a" * (1 << 20) + "a", "at most 1048576 characters"),
    ("ebnf", 'root ::= "\udcff"', "a text without lone surrogates"),
]


@pytest.mark.parametrize(
    ("field", "value", "allowed"), BAD, ids=[f"{f}={v!r:.20}" for f, v, _ in BAD]
)
def test_out_of_range(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        validated(**{field: value})
    assert error.value.field == field
    text = str(error.value)
    assert text.startswith(field)
    assert allowed in text
    assert len(text) < 300


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ([], "prompt is [], but must be at least 1 token"),
        ([-1], "prompt token 0 is -1, but must be from 0 to 99"),
        ([5, 100], "prompt token 1 is 100, but must be from 0 to 99"),
        ([5, 1 << 62], "prompt token 1 is"),
        ([1.5], "a flat list of token ids"),
        ([[1, 2]], "a flat list of token ids"),
        ([1] * 16, "prompt is 16 tokens, but must be at most 15 tokens"),
        ([1] * 160, "161, and the model's length is 16"),
    ],
)
def test_bad_prompt(tokens: Any, text: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        validated(tokens)
    assert text in str(error.value)


def test_every_field_is_covered() -> None:
    checked = {field for field, _, _ in BAD} | {
        "ignore_eos",
        "skip_special_tokens",
        "keep_stop_token",
    }
    assert checked == {f.name for f in msgspec.structs.fields(SamplingParams)}


@pytest.mark.parametrize(
    ("prompt", "asked", "granted"),
    [(2, None, 14), (2, 5, 5), (2, 14, 14), (2, 999, 14), (15, 9, 1)],
)
def test_max_tokens_is_clamped(prompt: int, asked: int | None, granted: int) -> None:
    assert validated([1] * prompt, max_tokens=asked).max_new_tokens == granted


def test_what_the_engine_gets() -> None:
    request = validated(
        [5, 6], n=2, seed=9, temperature=0.5, top_k=3, stop_token_ids=[7, 2], max_tokens=4
    )
    submits = request.submits([11, 12], deadline_ms=77)
    assert [s.request for s in submits] == [11, 12]
    assert [s.sampling.seed for s in submits] == [9, 10]
    for submit in submits:
        assert np.frombuffer(submit.tokens, np.int32).tolist() == [5, 6]
        assert submit.stop_ids == [2, 0, 7]
        assert (submit.max_new_tokens, submit.deadline_ms) == (4, 77)
        assert (submit.sampling.temperature, submit.sampling.top_k) == (0.5, 3)


def test_ignore_eos() -> None:
    assert validated(ignore_eos=True, stop_token_ids=[7]).stop_ids == (7,)


def test_neutral_values_pass() -> None:
    validated(top_k=0, top_p=1, min_p=1, temperature=0, seed=(1 << 64) - 1, frequency_penalty=0.0)


def test_tiny_temperature_is_greedy() -> None:
    assert validated(temperature=1e-30).sampling.temperature == 0.0


def test_one_stop_string_may_come_alone() -> None:
    assert validated(stop="abc").stop == ("abc",)


def test_a_constraint_goes_along() -> None:
    for kind in KINDS:
        made = GenerationRequest.validated([5], SamplingParams(**{kind: "x"}), LIMITS)
        assert made.constraint == Constraint(kind, "x")
        assert made.submits([1], 0)[0].grammar == 0, "it has to be compiled first"
    assert GenerationRequest.validated([5], SamplingParams(), LIMITS).constraint is None


@pytest.mark.parametrize(
    ("params", "limits", "text"),
    [
        ({"json_schema": "{}", "regex": "a"}, LIMITS, "regex is 'a', but must be absent beside"),
        ({"regex": "a", "ignore_eos": True}, LIMITS, "ignore_eos is True, but must be False with"),
        ({"regex": "a"}, msgspec.structs.replace(LIMITS, eos_ids=()), "names no token that ends"),
    ],
)
def test_a_constraint_that_cannot_be_kept_to(params: Any, limits: Limits, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        GenerationRequest.validated([5], SamplingParams(**params), limits)


BEGIN, END = 90, 91


@pytest.mark.parametrize(
    ("tokens", "begun"),
    [
        ([5], False),
        ([5, BEGIN], True),
        ([5, BEGIN, 6, 7], True),
        ([BEGIN, 6, END, 5, 5, 5, 5, 5, 5], False),
        ([BEGIN, 6, END, 5, BEGIN], True),
        ([5, BEGIN, END], None),
        ([5, BEGIN, 7, END, 7, 7], None),
    ],
)
def test_a_constraint_is_about_what_follows_a_thought(tokens: list[int], begun: Any) -> None:
    """Of a turn before, which is long over; of this one; and of one that was closed for us."""
    limits = msgspec.structs.replace(LIMITS, marks=(BEGIN, END))
    made = GenerationRequest.validated(tokens, SamplingParams(regex="a"), limits)
    if begun is None:
        assert made.thinking is None
    else:
        assert made.thinking == Thinking(BEGIN, END, begun=begun, end_ids=[2, 0])
        assert made.submits([1], 0)[0].thinking == made.thinking
    assert GenerationRequest.validated(tokens, SamplingParams(), limits).thinking is None
    assert GenerationRequest.validated(tokens, SamplingParams(regex="a"), LIMITS).thinking is None


def test_marks_of_a_tokenizer(tokenizer: Tokenizer) -> None:
    assert find_marks(tokenizer) is None
    thinker = Tokenizer.from_str(tokenizer.to_str())
    thinker.add_tokens(["<think>", "</think>"])
    assert find_marks(thinker) == tuple(map(thinker.token_to_id, ("<think>", "</think>")))
