# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The library with one model's tokens. What is compiled is its own text form of a grammar."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from
from tokenspeed_sdk.contracts.grammar import Constraint, GrammarError

from tokenspeed_llguidance.tags import tags_to_lark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from tokenspeed_sdk.contracts.grammar import Vocabulary

FORMATS = {"json_schema": "json_schema", "regex": "regex", "ebnf": "gbnf"}
WHITESPACE = r"[ \n\r\t]{0,40}"
"""Between the parts of a JSON text. A small model that may write white space for ever does."""

TRIED = 4
"""Tokens that are followed when a grammar is compiled: one that is too large for the library's
limits mostly is where an answer begins, and the library says so only there."""

_DUMPS = re.compile(
    r"\s*<state>.*?</state>|\s*<grammar>.*?</grammar>|\s*<non-json-state>.*", re.DOTALL
)


class Library:
    """Compiles constraints and loads what was compiled."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._end_ids = frozenset(vocabulary.end_ids)
        self._words = vocabulary.mask_words
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary)),
            n_vocab=len(vocabulary.tokens),
            eos_token=list(vocabulary.end_ids),
        )

    def compile(self, constraint: Constraint) -> bytes:
        """GrammarError with what the library says."""
        try:
            text = _grammar(constraint)
        except ValueError as error:
            raise GrammarError(str(error)) from error
        self._try(Matcher(self._matcher(text), self._end_ids))
        return text.encode()

    def load(self, compiled: bytes) -> Compiled:
        """About a millisecond, most of it without the GIL."""
        return Compiled(self._matcher(compiled.decode()), self._end_ids)

    def _try(self, matcher: Matcher) -> None:
        """Begin an answer. GrammarError: it gets no further."""
        mask = np.zeros(self._words, np.int32)
        for _ in range(TRIED):
            matcher.fill(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            token = next((id_ for id_ in allowed.tolist() if id_ not in self._end_ids), None)
            if token is None:
                return
            matcher.accept(token)

    def _matcher(self, text: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, text, log_level=0)
        _check(matcher)
        return matcher


class Compiled:
    """A grammar, as a matcher that never moves."""

    def __init__(self, start: LLMatcher, end_ids: frozenset[int]) -> None:
        self._start = start
        self._end_ids = end_ids

    def matcher(self) -> Matcher:
        """Shares what was computed of the grammar with all others."""
        return Matcher(self._start.deep_copy(), self._end_ids)


class Matcher:
    """One sequence. The library is not told of an end token: it would not take it back."""

    def __init__(self, matcher: LLMatcher, end_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._end_ids = end_ids
        self._ended = False

    def fill(self, mask: NDArray[np.int32]) -> None:
        """GrammarError: the next token is harder to find than the library's limits allow.

        Where the grammar forces a text, the mask has the first token of its usual spelling alone.
        """
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        _check(self._matcher)

    def accept(self, token: int) -> bool:
        """GrammarError: what follows it is beyond the library's limits.

        A token that is refused would break the library's matcher for good: it is asked first.
        """
        if self._ended:
            return False
        if token in self._end_ids:
            self._ended = self._matcher.is_accepting()
            return self._ended
        taken = self._matcher.validate_tokens([token]) == 1 and self._matcher.consume_token(token)
        _check(self._matcher)
        return taken

    def rollback(self, tokens: int) -> None:
        """ValueError: more than were accepted."""
        if tokens and self._ended:
            self._ended = False
            tokens -= 1
        if tokens and not self._matcher.rollback(tokens):
            raise ValueError(_reason(self._matcher))


class _Tokens:
    """What the library asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        names = {id_: text.encode() for text, id_ in vocabulary.special}
        # An end token without a name would have no bytes to be told from others by.
        names |= {id_: names.get(id_) or b"<end %d>" % id_ for id_ in vocabulary.end_ids}
        self.eos_token_id = vocabulary.end_ids[0]
        self.tokens = [names.get(id_, token) for id_, token in enumerate(vocabulary.tokens)]
        self.special_token_ids = sorted(names)
        self._encode = vocabulary.encode or _longest_first(vocabulary)

    def __call__(self, text: bytes) -> Sequence[int]:
        """The usual spelling of a text that the grammar forces."""
        return self._encode(text.decode())


def _longest_first(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    """A spelling by the longest token at each place, for a vocabulary without one of its own."""
    ids = {token: id_ for id_, token in enumerate(vocabulary.tokens) if token}
    longest = max(map(len, ids))

    def encode(text: str) -> list[int]:
        rest, found = text.encode(), []
        while rest:
            size = next(n for n in range(longest, 0, -1) if rest[:n] in ids)
            found.append(ids[rest[:size]])
            rest = rest[size:]
        return found

    return encode


def _grammar(constraint: Constraint) -> str:
    if constraint.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(
            constraint.text, overrides={"whitespace_pattern": WHITESPACE}
        )
    if constraint.kind == "structural_tag":
        return grammar_from("lark", tags_to_lark(constraint.text, WHITESPACE))
    return grammar_from(FORMATS[constraint.kind], constraint.text)  # type: ignore[arg-type]


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(_reason(matcher))


def _reason(matcher: LLMatcher) -> str:
    """What the library says, without the dumps of its state and of the grammar."""
    return _DUMPS.sub("", matcher.get_error()).strip()
