# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The library with one model's tokens. What is compiled is its own JSON form of a grammar."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import xgrammar as xgr
from tokenspeed_sdk.contracts.grammar import GrammarError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenspeed_sdk.contracts.grammar import Constraint, Vocabulary

WHITESPACE = 16
"""Most characters of it in one place: a small model that may write it for ever does."""

_SOURCE = re.compile(r"^\[[^\]]*\] \S+:\d+: ", re.MULTILINE)


class Library:
    """Compiles constraints and loads what was compiled."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = xgr.TokenizerInfo(
            list(vocabulary.tokens),
            xgr.VocabType.RAW,
            vocab_size=len(vocabulary.tokens),
            stop_token_ids=list(vocabulary.end_ids),
        )
        # The caller has a cache, and runs this apart from what must not wait.
        self._compiler = xgr.GrammarCompiler(self._tokens, max_threads=1, cache_enabled=False)

    def compile(self, constraint: Constraint) -> bytes:
        """GrammarError with what the library says."""
        try:
            return self._compile(constraint).serialize_json().encode()
        except (RuntimeError, ValueError, TypeError) as error:
            raise GrammarError(_SOURCE.sub("", str(error)).strip()) from error

    def load(self, compiled: bytes) -> Compiled:
        """Tens of milliseconds for a large grammar, without the GIL."""
        return Compiled(xgr.CompiledGrammar.deserialize_json(compiled.decode(), self._tokens))

    def _compile(self, constraint: Constraint) -> xgr.CompiledGrammar:
        text = constraint.text
        if constraint.kind == "json_schema":
            # Without the strict mode additional properties are allowed unless the schema says no.
            return self._compiler.compile_json_schema(
                text, strict_mode=False, max_whitespace_cnt=WHITESPACE
            )
        if constraint.kind == "regex":
            return self._compiler.compile_regex(text)
        if constraint.kind == "ebnf":
            return self._compiler.compile_grammar(text)
        return self._compiler.compile_structural_tag(json.loads(text))


class Compiled:
    """A grammar with its masks."""

    def __init__(self, grammar: xgr.CompiledGrammar) -> None:
        self._grammar = grammar

    def matcher(self) -> Matcher:
        """At the beginning of an answer."""
        return Matcher(xgr.GrammarMatcher(self._grammar))


class Matcher:
    """One sequence."""

    def __init__(self, matcher: xgr.GrammarMatcher) -> None:
        self._matcher = matcher

    def fill(self, mask: NDArray[np.int32]) -> None:
        """The library writes every word."""
        self._matcher.fill_next_token_bitmask(mask.reshape(1, -1), 0)

    def accept(self, token: int) -> bool:
        """The library keeps its state when it refuses one."""
        return not self._matcher.is_terminated() and self._matcher.accept_token(token)

    def rollback(self, tokens: int) -> None:
        """RuntimeError: more than were accepted."""
        self._matcher.rollback(tokens)
