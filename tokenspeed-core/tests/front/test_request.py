# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenspeed.front import request, sampling_params
from tokenspeed.front.biases import MAX_BIAS, MAX_LOGIT_BIASES
from tokenspeed.front.errors import InvalidRequest
from tokenspeed.front.request import GenerationRequest, Limits
from tokenspeed.front.sampling_params import SamplingParams
from tokenspeed.front.thinking import find_marks
from tokenspeed.messages import MAX_TOP_LOGPROBS, Thinking
from tokenspeed_sdk.contracts.grammar import KINDS, Constraint

LIMITS = Limits(max_model_len=16, vocab_size=100, eos_ids=(2, 0))


def validated(tokens: Any = (5, 6), **params: Any) -> GenerationRequest:
    return GenerationRequest.validated(tokens, SamplingParams(**params), LIMITS)


DOCS = Path(__file__).parents[3] / "docs" / "sampling.md"


def test_the_page_lists_every_field_with_its_range() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", DOCS.read_text(), re.MULTILINE))
    elsewhere = {"priority", "salt", "skip_special_tokens", "keep_stop_token", *KINDS}
    fields = {f.name for f in msgspec.structs.fields(SamplingParams)}
    assert rows.keys() == fields - elsewhere
    low, high = sampling_params.REPETITION_PENALTIES
    assert rows["repetition_penalty"] == f"{low:g} to {high:g}"
    assert rows["presence_penalty"] == rows["frequency_penalty"] == "-2 to 2"
    assert sampling_params.MAX_PENALTY == 2
    assert rows["logit_bias"] == f"up to {MAX_LOGIT_BIASES} tokens, -100 to 100"
    assert MAX_BIAS == 100
    assert rows["n"] == f"1 to {request.MAX_N}"
    assert rows["top_logprobs"] == f"0 to {MAX_TOP_LOGPROBS}"
    assert str(request.MAX_STOP_STRINGS) in rows["stop"]
    assert str(request.MAX_STOP_STRING_LENGTH) in rows["stop"]
    assert str(request.MAX_STOP_TOKEN_IDS) in rows["stop_token_ids"]


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
    ("min_tokens", -1, "from 0 to 14"),
    ("min_tokens", 15, "from 0 to 14"),
    ("min_tokens", 1.0, "from 0 to 14"),
    ("frequency_penalty", 2.1, "from -2 to 2"),
    ("frequency_penalty", math.nan, "from -2 to 2"),
    ("presence_penalty", -2.1, "from -2 to 2"),
    ("presence_penalty", "much", "from -2 to 2"),
    ("repetition_penalty", 0.0, "from 0.01 to 100"),
    ("repetition_penalty", 101, "from 0.01 to 100"),
    ("repetition_penalty", math.inf, "from 0.01 to 100"),
    ("logit_bias", 5, "a mapping of token ids to numbers"),
    ("logit_bias", {"100": 1.0}, "from 0 to 99"),
    ("logit_bias", {-1: 1.0}, "from 0 to 99"),
    ("logit_bias", {"five": 1.0}, "from 0 to 99"),
    ("logit_bias", {"\u0665": 1.0}, "from 0 to 99"),
    ("logit_bias", {"9" * 5000: 1.0}, "from 0 to 99"),
    ("logit_bias", {True: 1.0}, "from 0 to 99"),
    ("logit_bias", {"5": 1.0, 5: 2.0}, "each token once"),
    ("logit_bias", dict.fromkeys(map(str, range(1025)), 0.0), "at most 1024"),
    ("ignore_eos", "no", "True or False"),
    ("skip_special_tokens", 0, "True or False"),
    ("keep_stop_token", None, "True or False"),
    ("logprobs", 1, "True or False"),
    ("prompt_logprobs", 21, "from 0 to 20"),
    ("prompt_logprobs", -1, "from 0 to 20"),
    ("prompt_logprobs", True, "from 0 to 20"),
    ("top_logprobs", 5, "0 without logprobs"),
    ("top_logprobs", 21, "from 0 to 20"),
    ("top_logprobs", -1, "from 0 to 20"),
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
        ([], "prompt is empty, but must be at least 1 token"),
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


@pytest.mark.parametrize("value", [100.1, -101, math.nan, math.inf, None, "1"])
def test_a_bias_out_of_range_names_its_token(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"logit_bias of token 5 is .* from -100 to 100"):
        validated(logit_bias={"5": value})


def test_every_field_is_covered() -> None:
    checked = {field for field, _, _ in BAD}
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


def test_adjustments_that_the_engine_gets() -> None:
    request = validated(
        [5, 6],
        repetition_penalty=1.5,
        frequency_penalty=-2,
        presence_penalty=2,
        logit_bias={"7": -100, 8: 0.5},
        min_tokens=3,
        max_tokens=3,
        stop_token_ids=[9],
    )
    [submit] = request.submits([1], deadline_ms=0)
    assert submit.sampling.penalties == (1.5, -2.0, 2.0)
    assert request.min_new_tokens == 3
    assert [(b.token, b.value) for b in submit.sampling.biases] == [
        *((7, -100.0), (8, 0.5)),
        *((2, -math.inf), (0, -math.inf), (9, -math.inf)),
    ]
    assert all(b.until > LIMITS.max_model_len for b in submit.sampling.biases[:2])
    assert all(b.until == 2 + 3 for b in submit.sampling.biases[2:])
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(submit), type=type(submit))
    assert again == submit


def test_who_asks_for_nothing_has_no_adjustments() -> None:
    sampling = validated(logit_bias={}, ignore_eos=True, repetition_penalty=1).sampling
    assert not sampling.biases
    assert not sampling.penalizes


def test_a_prompt_that_is_told_of_shares_nothing() -> None:
    """Of n sequences one tells of it; each time in a namespace of its own."""
    request = validated(prompt_logprobs=3, n=3, salt="acme")
    one, *others = request.submits([1, 2, 3], deadline_ms=0)
    assert [s.sampling.prompt_logprobs for s in (one, *others)] == [3, -1, -1]
    assert {s.namespace for s in others} == {request.namespace}
    spaces = {request.submits([1], deadline_ms=0)[0].namespace for _ in range(20)}
    assert len(spaces | {one.namespace, request.namespace}) == 22


def test_min_tokens_with_too_many_end_tokens() -> None:
    tiny = Limits(max_model_len=16, vocab_size=3, eos_ids=(2, 0))
    params = SamplingParams(min_tokens=1, stop_token_ids=[1])
    with pytest.raises(InvalidRequest, match="every token of the vocabulary ends the answer"):
        GenerationRequest.validated([1], params, tiny)
    many = Limits(max_model_len=16, vocab_size=1000, eos_ids=tuple(range(600)))
    with pytest.raises(InvalidRequest, match=r"600 ids with the model's own .* at most 512"):
        GenerationRequest.validated([1], SamplingParams(min_tokens=1), many)


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
        ({"regex": "a", "min_tokens": 2}, LIMITS, "min_tokens is 2, but must be 0 with regex"),
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
