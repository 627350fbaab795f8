# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The kit finds faults of grammar backends, and lets a sound one pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenspeed_sdk.contracts.grammar import Constraint, GrammarError, Vocabulary
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict
from tokenspeed_sdk.json_schema import MAX_DEPTH, named, parts
from tokenspeed_sdk.testing.grammar.examples import EXAMPLES
from tokenspeed_sdk.testing.grammar.suite import CHECKS, Subject

pytestmark = pytest.mark.rule("R19")

NUMBER = next(each for each in EXAMPLES if each.name == "number")
BEGUN = re.compile(r"[0-9]{0,3}|[0-9]{3}-((ab|ba)*[ab]?)")


class Regexes:
    """The regular expression of the kit's examples, written out: slow and sound."""

    name = "regexes"

    def accept(self, constraint: Constraint) -> Verdict:
        if constraint.kind != "regex":
            return Decline("has regular expressions alone")
        return Accept(1, "walks over all tokens")

    def open(self, vocabulary: Vocabulary) -> Regexes:
        self.vocabulary = vocabulary
        return self

    def compile(self, constraint: Constraint) -> bytes:
        if constraint != NUMBER.constraint:
            raise GrammarError("it is another one")
        return b"number"

    def load(self, compiled: bytes) -> Regexes:
        assert compiled == b"number"
        return self

    def matcher(self) -> Walk:
        return Walk(self.vocabulary)


class Walk:
    """One sequence."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.ids: list[int] = []

    def text(self, *more: int) -> str:
        tokens = self.vocabulary.tokens
        return b"".join(tokens[id_] for id_ in (*self.ids, *more)).decode("latin-1")

    def may(self, token: int) -> bool:
        if self.ids and self.ids[-1] in self.vocabulary.end_ids:
            return False
        if token in self.vocabulary.end_ids:
            return re.fullmatch(NUMBER.constraint.text, self.text()) is not None
        return bool(self.vocabulary.tokens[token]) and self.begun(self.text(token))

    def begun(self, text: str) -> bool:
        return BEGUN.fullmatch(text) is not None

    def fill(self, mask: Any) -> None:
        mask[:] = 0
        for token in range(len(self.vocabulary.tokens)):
            if self.may(token):
                mask[token // 32] |= np.array(1 << token % 32, np.uint32).view(np.int32)

    def accept(self, token: int) -> bool:
        if not self.may(token):
            return False
        self.ids.append(token)
        return True

    def rollback(self, tokens: int) -> None:
        del self.ids[len(self.ids) - tokens :]


def test_a_sound_backend_passes() -> None:
    for check in CHECKS.values():
        check(Subject(Regexes))


def with_walk(**methods: Any) -> Callable[[], Any]:
    """A backend whose matchers have other methods."""
    walk = type("Odd", (Walk,), methods)
    return type("Odd", (Regexes,), {"matcher": lambda self: walk(self.vocabulary)})


def with_library(**methods: Any) -> Callable[[], Any]:
    return type("Odd", (Regexes,), methods)


def one_end(self: Walk, token: int) -> bool:
    return token != self.vocabulary.end_ids[1] and Walk.may(self, token)


def ends_anywhere(self: Walk, token: int) -> bool:
    return token in self.vocabulary.end_ids or Walk.may(self, token)


def takes_special(self: Walk, token: int) -> bool:
    return token == self.vocabulary.special[0][1] or Walk.may(self, token)


def fills_less(self: Walk, mask: Any) -> None:
    """Forgets the words past the first two: the letters."""
    Walk.fill(self, mask)
    mask[2:] = 0


def refuses_and_keeps(self: Walk, token: int) -> bool:
    said = self.may(token)
    self.ids.append(token)
    return said


def keeps_the_end(self: Walk, tokens: int) -> None:
    if self.ids[-1] not in self.vocabulary.end_ids:
        Walk.rollback(self, tokens)


def one_matcher(self: Regexes) -> Walk:
    self.only = getattr(self, "only", None) or Walk(self.vocabulary)
    return self.only


FAULTS = {
    "good_answers": (with_walk(may=one_end), "only one end token may come"),
    "bad_answers": (with_walk(may=ends_anywhere), "may end"),
    "masks": (with_walk(may=takes_special), "tokens without text may come"),
    "reach": (with_walk(fill=fills_less), "no token of the mask goes on with"),
    "rollback": (with_walk(rollback=keeps_the_end), "the end was not taken back|refuses"),
    "matchers_are_independent": (with_library(matcher=one_matcher), "share their state"),
    "malformed": (with_library(compile=lambda self, constraint: b"number"), "DID NOT RAISE"),
    "verdicts": (with_library(accept=lambda self, constraint: True), "accept answers True"),
}


@pytest.mark.parametrize("check", FAULTS)
def test_faults_are_found(check: str) -> None:
    factory, message = FAULTS[check]
    with pytest.raises((AssertionError, pytest.fail.Exception), match=message):
        CHECKS[check](Subject(factory))


def test_a_refusal_that_leaves_a_trace_is_found() -> None:
    with pytest.raises(AssertionError):
        CHECKS["masks"](Subject(with_walk(accept=refuses_and_keeps)))


def test_an_ignored_keyword_is_found() -> None:
    class Anything(Regexes):
        """Takes every schema and lets every text through."""

        def accept(self, constraint: Constraint) -> Verdict:
            return Accept(1, "any text is JSON to it")

        def compile(self, constraint: Constraint) -> bytes:
            return b"number"

        def matcher(self) -> Any:
            walk = type("Any", (Walk,), {"may": lambda self, token: True})
            return walk(self.vocabulary)

    with pytest.raises(AssertionError, match=r"uniqueItems is ignored: .* lets \[1,1\] pass"):
        CHECKS["keywords"](Subject(Anything))


def test_parts_of_a_schema() -> None:
    text = """{"properties": {"a": {"items": [{"not": {"const": {"if": 1}}}]}},
               "$defs": {"n": {"anyOf": [true, {"$ref": "#"}]}}, "enum": [{"not": 1}]}"""
    assert {path for path, _ in parts(text)} == {
        "#",
        "#/properties/a",
        "#/properties/a/items/0",
        "#/properties/a/items/0/not",
        "#/$defs/n",
        "#/$defs/n/anyOf/1",
    }
    deep = '{"not": ' * 500 + "{}" + "}" * 500
    assert len(parts(deep)) == MAX_DEPTH
    assert parts("[" * 100_000) == []
    assert parts('"a"') == []


def test_of_very_many_faults_the_first_are_named() -> None:
    assert named(["a"]) == "a"
    assert named([*map(str, range(20))]).endswith("18, 19")
    assert named([*map(str, range(23))]).endswith("18, 19, and 3 more")


def test_what_a_reference_leads_to_is_a_part() -> None:
    text = """{"$ref": "#/foo", "foo": {"items": {"$ref": "x#/a~1%20b/1"}}, "a/ b": [1, {}],
               "allOf": [{"$ref": "#/nowhere"}, {"$ref": "#/a~1%20b/2"}, {"$ref": "#/foo"}]}"""
    assert [path for path, _ in parts(text)] == [
        *("#", "#/allOf/0", "#/allOf/1", "#/allOf/2", "#/foo", "#/foo/items", "#/a~1 b/1")
    ]
