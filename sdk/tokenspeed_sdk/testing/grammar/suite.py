# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The conformance suite of contract ``grammar``: one line in a test file of the author.

from acme_grammar import Acme
from tokenspeed_sdk.testing import grammar_conformance

test_acme = grammar_conformance(Acme)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tokenspeed_sdk.contracts.grammar import KINDS, Constraint, GrammarError
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_sdk.testing.grammar.examples import EXAMPLES, KEYWORDS, MALFORMED, Example
from tokenspeed_sdk.testing.grammar.vocabulary import allowed, encode, prefixes, small_vocabulary

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.grammar import GrammarBackend, GrammarLibrary, Matcher

VOCABULARY = small_vocabulary()
END, OTHER_END = VOCABULARY.end_ids


class Subject:
    """A backend under test, opened once."""

    def __init__(self, factory: Callable[[], GrammarBackend]) -> None:
        self.backend = factory()
        self.library: GrammarLibrary = self.backend.open(VOCABULARY)

    def honours(self, constraint: Constraint) -> bool:
        """Whether it accepts a constraint; its verdict must have a reason."""
        verdict = self.backend.accept(constraint)
        assert isinstance(verdict, Accept | Decline), f"accept answers {verdict!r}"
        assert verdict.why, "a verdict says why"
        return isinstance(verdict, Accept)

    def matcher(self, constraint: Constraint) -> Matcher:
        """Of what was compiled and loaded."""
        compiled = self.library.compile(constraint)
        assert isinstance(compiled, bytes), "compile returns bytes, which travel to the engine"
        return self.library.load(compiled).matcher()

    def examples(self) -> list[Example]:
        """Those whose constraint it accepts."""
        return [each for each in EXAMPLES if self.honours(each.constraint)]


Check: TypeAlias = Callable[[Subject], None]
"""AssertionError says what is wrong."""


def check_verdicts(subject: Subject) -> None:
    """It has a name, accepts at least one kind, and raises for no text, however broken."""
    assert subject.backend.name
    assert subject.examples(), f"it accepts no example of any of {', '.join(KINDS)}"
    for kind in KINDS:
        for text in ("", "{", "[]", "null", '{"type": 3}', "\0", "(" * 2000, "[" * 2000):
            subject.honours(Constraint(kind, text))


def check_good_answers(subject: Subject) -> None:
    """Whole answers pass, and an end token may come exactly where the answer is complete."""
    for example in subject.examples():
        whole = [encode(VOCABULARY, text) for text in example.good]
        for ids in whole:
            matcher = subject.matcher(example.constraint)
            for came, coming in prefixes(ids):
                bits = allowed(matcher, VOCABULARY)
                where = f"{example.name}: after {_text(came)!r}"
                ends = {END, OTHER_END} & bits
                assert ends in (set(), {END, OTHER_END}), f"{where} only one end token may come"
                assert bits, f"{where} nothing may come"
                if coming is None:
                    assert ends, f"{where} no end token may come"
                else:
                    assert matcher.accept(coming), f"{where} accept refuses {_text([coming])!r}"
            assert matcher.accept(OTHER_END), f"{example.name}: accept refuses the end"


def check_reach(subject: Subject) -> None:
    """Every whole answer can be written with tokens that the masks have."""
    for example in subject.examples():
        for text in example.good:
            matcher, rest = subject.matcher(example.constraint), text.encode()
            while rest:
                bits = allowed(matcher, VOCABULARY) - {END, OTHER_END}
                fitting = [i for i in bits if rest.startswith(VOCABULARY.tokens[i])]
                assert fitting, f"{example.name}: no token of the mask goes on with {rest!r}"
                token = max(fitting, key=lambda i: len(VOCABULARY.tokens[i]))
                assert matcher.accept(token)
                rest = rest[len(VOCABULARY.tokens[token]) :]
            assert {END, OTHER_END} <= allowed(matcher, VOCABULARY)


def check_bad_answers(subject: Subject) -> None:
    """Answers that do not match are stopped where they leave the grammar, or cannot end."""
    for example in subject.examples():
        for text in example.bad:
            matcher = subject.matcher(example.constraint)
            came = _advance(matcher, encode(VOCABULARY, text))
            if came == len(encode(VOCABULARY, text)):
                assert END not in allowed(matcher, VOCABULARY), f"{example.name}: {text!r} may end"
                assert not matcher.accept(END), f"{example.name}: {text!r} ends"


def check_masks(subject: Subject) -> None:
    """What a mask has is accepted, and tokens without text never are: special ones and padding."""
    silent = {i for i, token in enumerate(VOCABULARY.tokens) if not token} - {END, OTHER_END}
    for example in subject.examples():
        ids = encode(VOCABULARY, example.good[0])
        matcher = subject.matcher(example.constraint)
        for came, coming in prefixes(ids):
            where = f"{example.name}: after {_text(came)!r}"
            bits = allowed(matcher, VOCABULARY)
            assert not bits & silent, f"{where} tokens without text may come: {bits & silent}"
            for token in range(len(VOCABULARY.tokens)):
                taken = matcher.accept(token)
                assert taken or token not in bits, f"{where} accept refuses {token} of the mask"
                assert not (taken and token in silent), (
                    f"{where} accept takes {token}, without text"
                )
                if taken:
                    matcher.rollback(1)
            assert allowed(matcher, VOCABULARY) == bits, f"{where} accept and rollback left a trace"
            if coming is not None:
                assert matcher.accept(coming)


def check_rollback(subject: Subject) -> None:
    """Any number of tokens can be taken back, the end token included."""
    for example in subject.examples():
        ids = encode(VOCABULARY, example.good[-1])
        matcher = subject.matcher(example.constraint)
        masks = []
        for token in ids:
            masks.append(allowed(matcher, VOCABULARY))
            assert matcher.accept(token)
        last = allowed(matcher, VOCABULARY)
        assert matcher.accept(END)
        matcher.rollback(1)
        assert allowed(matcher, VOCABULARY) == last, f"{example.name}: the end was not taken back"
        for back in (1, 2, len(ids)):
            count = min(back, len(ids))
            matcher.rollback(count)
            assert allowed(matcher, VOCABULARY) == masks[len(ids) - count], (
                f"{example.name}: another mask after {count} tokens were taken back"
            )
            assert _advance(matcher, ids[len(ids) - count :]) == count


def check_matchers_are_independent(subject: Subject) -> None:
    """What one sequence does, another with the same grammar does not see."""
    for example in subject.examples():
        grammar = subject.library.load(subject.library.compile(example.constraint))
        first, second = grammar.matcher(), grammar.matcher()
        start = allowed(second, VOCABULARY)
        _advance(first, encode(VOCABULARY, example.good[0]))
        assert allowed(second, VOCABULARY) == start, f"{example.name}: matchers share their state"
        assert allowed(grammar.matcher(), VOCABULARY) == start, f"{example.name}: a late one too"


def check_malformed(subject: Subject) -> None:
    """What is malformed is declined, or fails to compile with a GrammarError that says why."""
    for constraint in MALFORMED:
        if not subject.honours(constraint):
            continue
        with pytest.raises(GrammarError) as caught:
            subject.library.compile(constraint)
        assert str(caught.value), f"{constraint}: the error says nothing"


def check_keywords(subject: Subject) -> None:
    """No keyword of a schema is ignored: it is honoured, or the schema is refused."""
    for keyword in KEYWORDS:
        if not subject.honours(keyword.constraint):
            continue
        try:
            matcher = subject.matcher(keyword.constraint)
        except GrammarError:
            continue
        ids = encode(VOCABULARY, keyword.bad)
        ended = _advance(matcher, ids) == len(ids) and matcher.accept(END)
        assert not ended, f"{keyword.name} is ignored: {keyword.schema} lets {keyword.bad} pass"


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        check.__name__.removeprefix("check_"): check
        for check in (
            check_verdicts,
            check_good_answers,
            check_reach,
            check_bad_answers,
            check_masks,
            check_rollback,
            check_matchers_are_independent,
            check_malformed,
            check_keywords,
        )
    }
)
"""All that a backend must pass, by the name that pytest shows."""


def grammar_conformance(factory: Callable[[], GrammarBackend]) -> Callable[..., None]:
    """A parametrised test of a grammar backend.

    Assign it to a name that starts with ``test_``. Each check is a test of its own:
    ``test_acme[masks]``.

    Args:
        factory: what the entry point in ``tokenspeed.grammar`` names.
    """

    @pytest.mark.parametrize("check", list(CHECKS))
    def test(check: str) -> None:
        CHECKS[check](Subject(factory))

    return test


def _advance(matcher: Matcher, ids: list[int]) -> int:
    """How many tokens were accepted before one was refused."""
    for count, token in enumerate(ids):
        if not matcher.accept(token):
            return count
    return len(ids)


def _text(ids: list[int]) -> str:
    return b"".join(VOCABULARY.tokens[id_] for id_ in ids).decode(errors="replace")
