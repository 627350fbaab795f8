# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which backend gets a constraint, and what is said when none takes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenspeed.grammar.backends import Backends, OpenError, kinds_of, read_backend
from tokenspeed.plugins.errors import BrokenPromiseError, LoadError
from tokenspeed.plugins.plan import PluginPlan
from tokenspeed_sdk.contracts.grammar import Constraint, GrammarError, Vocabulary
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_sdk.json_schema import MAX_DEPTH

Plan = Callable[..., PluginPlan]


def vocabulary() -> Vocabulary:
    return Vocabulary((b"a",) * 512, (2,))


def regex(text: str) -> Constraint:
    return Constraint("regex", text)


def test_the_best_that_honours_it_compiles_it(grammar_plan: Plan) -> None:
    backends = Backends(grammar_plan(low=50, high=100), vocabulary)
    assert list(backends.verdicts(regex("a"))) == ["high", "low"]
    compiled = backends.compile(regex("a"))
    assert (compiled.backend, compiled.data) == ("high", b"high a")


def test_one_that_is_not_asked_is_not_opened(grammar_plan: Plan) -> None:
    opened: list[str] = []

    def once() -> Vocabulary:
        opened.append("vocabulary")
        return vocabulary()

    backends = Backends(grammar_plan(low=50, high=100), once)
    assert opened == []
    backends.compile(regex("a"))
    backends.compile(regex("b"))
    assert opened == ["vocabulary"]
    assert backends.library("low") is not backends.library("high")
    assert opened == ["vocabulary"], "it is read once for all"


def test_the_next_one_gets_what_the_best_cannot_compile(grammar_plan: Plan) -> None:
    source = """
        from tokenspeed_sdk.contracts.grammar import GrammarError
        from tokenspeed_sdk.contracts.probe import Accept

        class Backend:
            name = {name!r}
            def accept(self, constraint):
                return Accept({score}, "ready")
            def open(self, vocabulary):
                return self
            def compile(self, constraint):
                if {score} > 50:
                    raise GrammarError("too hard")
                return b"done"
    """
    backends = Backends(grammar_plan(source, low=50, high=100), vocabulary)
    assert backends.compile(regex("a")).backend == "low"
    with pytest.raises(GrammarError, match=r"^high says: too hard$"):
        Backends(grammar_plan(source, high=100), vocabulary).compile(regex("a"))


def test_a_refusal_has_the_words_of_all(grammar_plan: Plan) -> None:
    backends = Backends(grammar_plan(one=50, two=60), vocabulary)
    with pytest.raises(GrammarError) as caught:
        backends.compile(Constraint("ebnf", "root ::= 1"))
    said = "one does not honour that at #; two does not honour that at #"
    assert str(caught.value) == said
    with pytest.raises(GrammarError, match="two says: that is bad; one says: that is bad"):
        backends.compile(regex("bad"))
    with pytest.raises(GrammarError, match="its compiler failed: ZeroDivisionError"):
        backends.compile(regex("raise"))


def test_without_a_backend_the_wheel_is_named() -> None:
    with pytest.raises(GrammarError, match="pip install tokenspeed-llguidance"):
        Backends(PluginPlan.make("fake", ()), vocabulary).compile(regex("a"))


def test_one_that_cannot_be_opened_is_no_fault_of_a_constraint(grammar_plan: Plan) -> None:
    source = """
        from tokenspeed_sdk.contracts.grammar import GrammarError
        from tokenspeed_sdk.contracts.probe import Accept

        class Backend:
            name = {name!r}
            def accept(self, constraint):
                return Accept({score}, "ready")
            def open(self, vocabulary):
                if {score} > 50:
                    raise OSError("no library")
                return self
            def compile(self, constraint):
                if constraint.text == "bad":
                    raise GrammarError("that is bad")
                return b"made"
    """
    backends = Backends(grammar_plan(source, sound=50, broken=60), vocabulary)
    phases: list[str] = []
    assert backends.compile(regex("a"), phases.append).backend == "sound"
    assert phases == ["compiling", "opening", "opening", "compiling"]
    with pytest.raises(OpenError, match=r"^broken cannot be opened: .*; sound says: that is bad$"):
        backends.compile(regex("bad"))
    alone = Backends(grammar_plan(source, sound=50), vocabulary)
    with pytest.raises(GrammarError, match=r"^sound says: that is bad$") as caught:
        alone.compile(regex("bad"))
    assert not isinstance(caught.value, OpenError)
    with pytest.raises(OpenError, match="no grammar backend can be loaded; 'ts plugins doctor'"):
        Backends(grammar_plan("1 / 0", gone=50), vocabulary).compile(regex("a"))


def test_one_that_raises_when_it_is_asked_declines(grammar_plan: Plan) -> None:
    source = """
        class Backend:
            name = {name!r}
            def accept(self, constraint):
                raise SystemExit({score})
            def open(self, vocabulary):
                raise OSError("no library")
    """
    backends = Backends(grammar_plan(source, broken=1), vocabulary)
    verdict = backends.verdicts(regex("a"))["broken"]
    assert isinstance(verdict, Decline)
    assert "SystemExit" in verdict.why
    with pytest.raises(GrammarError, match="broken cannot be opened: OSError: no library"):
        backends.library("broken")
    with pytest.raises(GrammarError, match="there is no grammar backend 'other'"):
        backends.library("other")


@pytest.mark.rule("R7")
def test_what_is_no_backend_is_named_with_its_owner(grammar_plan: Plan) -> None:
    nameless = "class Backend:\n    name = 'other'\n"
    [planned] = grammar_plan(nameless, one=1).of("grammar")
    with pytest.raises(BrokenPromiseError, match=r"one-wheel 1\.2 calls itself 'other'"):
        read_backend(planned)
    [planned] = grammar_plan("class Backend:\n    name = {name!r}\n", one=1).of("grammar")
    with pytest.raises(BrokenPromiseError, match="has no method accept"):
        read_backend(planned)
    [planned] = grammar_plan("1 / 0", one=1).of("grammar")
    with pytest.raises(LoadError):
        read_backend(planned)


def test_kinds(grammar_plan: Plan) -> None:
    [planned] = grammar_plan(one=1).of("grammar")
    backend = read_backend(planned)
    assert kinds_of(backend) == ["regex"]
    assert backend.accept(regex("a")) == Accept(1, "ready")


@pytest.mark.parametrize("kind", ["json_schema", "structural_tag"])
def test_what_is_nested_too_deep_reaches_no_backend(grammar_plan: Plan, kind: str) -> None:
    """Below their depth nothing would be looked at, such as a keyword that nobody honours."""
    source = """
        from tokenspeed_sdk.contracts.probe import Accept

        class Backend:
            name = {name!r}
            def accept(self, constraint):
                return Accept({score}, "ready")
            def open(self, vocabulary):
                return self
            def compile(self, constraint):
                return b"made"
        """
    backends = Backends(grammar_plan(source, one=50), vocabulary)
    text = '{"a": "[[[[[[", "items": '
    for depth, good in ((MAX_DEPTH, True), (MAX_DEPTH + 1, False), (100_000, False)):
        constraint = Constraint(kind, text * (depth - 1) + "{}" + "}" * (depth - 1))
        if good:
            assert backends.compile(constraint).data == b"made"
            continue
        with pytest.raises(GrammarError, match="one is not asked: it is nested more than 128 deep"):
            backends.compile(constraint)
