# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenspeed.front.stop import StopMatcher

_TEXT = st.text(alphabet="ab é", max_size=30)
_STOPS = st.lists(st.text(alphabet="ab é", min_size=1, max_size=5), min_size=1, max_size=3)
_CUTS = st.lists(st.integers(0, 30))


def run(stops: list[str], text: str, cuts: list[int]) -> tuple[str, str | None]:
    matcher, out = StopMatcher(stops), ""
    edges = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    for start, end in pairwise(edges):
        out += matcher.push(text[start:end])
        if matcher.matched is not None:
            return out, matcher.matched
    return out + matcher.flush(), None


def expected(stops: list[str], text: str) -> tuple[str, str | None]:
    """The first end at which any stop string is complete; the longest of those."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stops if text[:end].endswith(s)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(_STOPS, _TEXT, _CUTS)
def test_result_does_not_depend_on_cuts(stops: list[str], text: str, cuts: list[int]) -> None:
    assert run(stops, text, cuts) == expected(stops, text)


@given(_STOPS, _TEXT)
def test_holds_back_no_more_than_needed(stops: list[str], text: str) -> None:
    matcher, passed = StopMatcher(stops), ""
    for end, character in enumerate(text, start=1):
        passed += matcher.push(character)
        if matcher.matched is not None:
            return
        starts = [k for s in stops for k in range(1, len(s)) if text[:end].endswith(s[:k])]
        assert end - len(passed) == max(starts, default=0)


@pytest.mark.parametrize(
    ("stops", "pieces", "passed"),
    [
        (["own fox"], ["br", "ow", "n f", "ox!"], ["br", "", "", ""]),
        (["aab"], ["aaa", "ab"], ["a", "a"]),
        (["x"], ["plain", " words"], ["plain", " words"]),
        (["abcd", "bc"], ["abcd"], ["a"]),
    ],
)
def test_examples(stops: list[str], pieces: list[str], passed: list[str]) -> None:
    matcher = StopMatcher(stops)
    assert [matcher.push(piece) for piece in pieces] == passed
