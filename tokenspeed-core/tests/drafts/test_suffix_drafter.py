# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The suffix drafter guesses what its definition says, keeps the contract, and frees its memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenspeed._drafts import SuffixDrafter
from tokenspeed_sdk.contracts.drafter import Drafter, DrafterLimits
from tokenspeed_sdk.testing.drafter.suite import drafter_conformance

from .definition import NaiveDrafter, vote

K = 6


class Suffix:
    """The drafter as a plugin would offer it."""

    name = "suffix"

    def open(self, limits: DrafterLimits) -> Drafter:
        return SuffixDrafter(max_model_len=limits.max_model_len, pool_bytes=limits.pool_bytes)


test_contract = drafter_conformance(Suffix)


def ids(*tokens: int) -> Any:
    return np.array(tokens, np.int32)


def new(**options: int) -> SuffixDrafter:
    return SuffixDrafter(**{"max_model_len": 10_000, "pool_bytes": 1 << 16, **options})


def advance(drafter: SuffixDrafter, request: int, tokens: list[int]) -> None:
    drafter.advance(np.array([request], np.uint64), ids(0, len(tokens)), ids(*tokens))


def draft(drafter: SuffixDrafter, request: int, most: int = K) -> list[int]:
    tokens = np.full((1, K), -9, np.int32)
    [count] = drafter.draft(np.array([request], np.uint64), ids(most), tokens)
    assert (tokens[0, count:] == -9).all()
    return tokens[0, :count].tolist()


REQUEST = st.integers(0, 2)
TOKENS = st.lists(st.integers(0, 2), max_size=12)
CALLS = st.one_of(
    st.tuples(st.just("begin"), REQUEST, TOKENS, st.integers(0, 1)),
    st.tuples(st.just("advance"), REQUEST, TOKENS),
    st.tuples(st.just("end"), REQUEST),
)


@settings(max_examples=400, deadline=None)
@given(calls=st.lists(CALLS, max_size=25), most=st.integers(0, K))
def test_guesses_are_those_of_the_definition(calls: list[tuple[Any, ...]], most: int) -> None:
    """After every call, for every request."""
    drafter, naive = new(), NaiveDrafter()
    for name, request, *rest in calls:
        if name == "begin":
            drafter.begin(request, ids(*rest[0]), namespace=rest[1])
            naive.begin(request, *rest)
        elif name == "advance":
            advance(drafter, request, *rest)
            naive.advance(request, *rest)
        else:
            drafter.end(request)
            naive.end(request)
        for each in range(3):
            assert draft(drafter, each, most) == naive.draft(each, most)


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.integers(0, 3), min_size=100, max_size=240),
    cuts=st.lists(st.integers(0, 240), max_size=5),
)
def test_long_matches_are_those_of_the_definition(text: list[int], cuts: list[int]) -> None:
    """Of texts that copy pieces of themselves."""
    for cut in cuts:
        text = text + text[cut : cut + 60]
    drafter, naive = new(pool_bytes=0), NaiveDrafter()
    for place in range(len(text) - 10, len(text)):
        drafter.begin(1, ids(*text[:place]), namespace=0)
        naive.begin(1, text[:place], 0)
        assert draft(drafter, 1) == naive.draft(1, K)


def test_the_definition_itself() -> None:
    """By hand: 1 - 1/4 for one voice behind three tokens."""
    assert vote(3, [[7, 8, 9, 10]], 9) == [7, 8, 9]
    assert 0.75**3 > 0.4 > 0.75**4
    assert vote(3, [[7], [8], [8]], 9) == [8]
    assert vote(32, [[7], [8], [9]], 9) == []


def test_rows_of_one_call_are_those_of_many() -> None:
    drafter = new()
    for request in range(5):
        drafter.begin(request, ids(*([*range(request, 9)] * 3)), namespace=0)
    tokens = np.full((5, K), -9, np.int32)
    counts = drafter.draft(np.arange(5, dtype=np.uint64), ids(0, 1, 2, 9, 6), tokens)
    assert counts.dtype == np.int32
    for request, most in enumerate((0, 1, 2, K, 6)):
        assert tokens[request, : counts[request]].tolist() == draft(drafter, request, most)
    assert counts.tolist() == [0, 1, 2, 6, 5]  # nothing is known past the end of its text


def test_more_is_asked_for_than_a_row_has() -> None:
    drafter = new()
    drafter.begin(1, ids(*([*range(50)] * 2)), namespace=0)
    assert len(draft(drafter, 1, most=40)) == K
    assert draft(drafter, 1, most=-1) == []


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_memory_is_released_when_requests_end() -> None:
    """Thirty requests of 100,000 tokens hold tens of MiB, and next to nothing afterwards."""
    drafter = new(max_model_len=200_000, pool_bytes=0)
    prompt = np.arange(100_000, dtype=np.int32)
    before = _resident()
    for request in range(30):
        drafter.begin(request, prompt, namespace=0)
    held = _resident() - before
    assert held >= 30 * 100_000 * 12 // 2
    assert held <= 30 * 100_000 * 24
    assert drafter.requests() == 30
    for request in range(30):
        drafter.end(request)
    assert drafter.requests() == 0
    assert _resident() - before <= held // 4


def test_the_pool_has_its_bytes_and_no_more() -> None:
    drafter = new(max_model_len=200_000, pool_bytes=4 << 20)
    before = _resident()
    for request in range(300):
        drafter.begin(request, ids(1), namespace=request)
        advance(drafter, request, [*range(10_000)])
        drafter.end(request)
    assert _resident() - before <= (4 << 20) + (6 << 20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 0}, "max_model_len: expected a number from 1 to 2147483646, not 0"),
        ({"max_model_len": 2**31}, "max_model_len: expected"),
        ({"pool_bytes": -1}, "pool_bytes: expected a number from 0 to 1099511627776, not -1"),
        ({"pool_bytes": 2**41}, "pool_bytes: expected"),
    ],
)
def test_limits_out_of_range(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        new(**options)


ONE = np.array([1], np.uint64)


@pytest.mark.parametrize(
    ("request_", "start", "tokens", "error", "message"),
    [
        (ONE, ids(0), ids(1), ValueError, "token_start: expected one entry more"),
        (ONE, ids(0, 2), ids(1), ValueError, "token_start: expected entries that do not fall"),
        (ONE, ids(-1, 1), ids(1), ValueError, "token_start: expected entries that do not fall"),
        (ONE, ids(1, 0), ids(1), ValueError, "token_start: expected entries that do not fall"),
        (ids(1), ids(0, 1), ids(1), TypeError, "request: expected dtype uint64"),
        (ONE, ids(0, 1), np.array([1]), TypeError, "tokens: expected dtype int32"),
        (ONE, ids(0, 1), ids(1, 2, 3)[::2], TypeError, "tokens: expected a C-contiguous array"),
    ],
)
def test_arrays_of_advance_are_checked(
    request_: Any, start: Any, tokens: Any, error: type[Exception], message: str
) -> None:
    drafter = new()
    drafter.begin(1, ids(5, 6, 7, 5), namespace=0)
    with pytest.raises(error, match=message):
        drafter.advance(request_, start, tokens)
    advance(drafter, 1, [6])
    assert draft(drafter, 1, 1) == [7]  # nothing had changed


@pytest.mark.parametrize(
    ("most", "tokens", "error", "message"),
    [
        (ids(1, 2), np.zeros((1, 2), np.int32), ValueError, "most: expected one entry per request"),
        (ids(1), np.zeros((2, 2), np.int32), ValueError, "tokens: expected one row per request"),
        (ids(1), np.zeros(2, np.int32), TypeError, "tokens: expected 2 dimensions, not 1"),
        (ids(1), np.zeros((1, 2)), TypeError, "tokens: expected dtype int32"),
    ],
)
def test_arrays_of_draft_are_checked(
    most: Any, tokens: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        new().draft(ONE, most, tokens)


def test_a_read_only_array_is_no_room_for_guesses() -> None:
    tokens = np.zeros((1, K), np.int32)
    tokens.flags.writeable = False
    with pytest.raises(TypeError, match="tokens: expected a writable array"):
        new().draft(ONE, ids(1), tokens)


def test_a_prompt_must_be_an_array_of_ids() -> None:
    with pytest.raises(TypeError, match="prompt: expected dtype int32"):
        new().begin(1, np.array([1.5]), namespace=0)
    with pytest.raises(TypeError):
        new().begin(-1, ids(1), namespace=0)
