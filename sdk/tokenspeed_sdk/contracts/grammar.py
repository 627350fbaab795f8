# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Contract ``grammar``: what may come next in an answer, token by token.

An entry point in ``tokenspeed.grammar`` is a zero-argument callable that returns a GrammarBackend.
Its module must be light: the library is imported by ``open``.

    backend.accept(constraint)             # is all of it honoured, or what is not
    library = backend.open(vocabulary)     # seconds at most, once in a process
    compiled = library.compile(constraint) # in a process that may be ended: a grammar can be huge
    grammar = library.load(compiled)       # in the engine, whose thread must not wait
    matcher = grammar.matcher()            # one for each sequence
    matcher.fill(mask)                     # the tokens that may come next, one bit each
    matcher.accept(token)                  # the one that came
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tokenspeed_sdk.contracts.probe import Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KINDS = ("json_schema", "regex", "ebnf", "structural_tag")
"""What a constraint may be written in."""


@dataclass(frozen=True)
class Constraint:
    """What an answer must match, from its first character to its last.

    Attributes:
        kind: one of KINDS: a JSON schema as JSON text, whose answer is one JSON value; a regular
            expression; a grammar in EBNF whose first rule is ``root``; or a JSON object of type
            "structural_tag": free text in which tags have a content of their own.
        text: the source.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of one model.

    Attributes:
        tokens: by id the bytes that a token adds to a text; empty for one that adds none: special
            tokens, and ids that the tokenizer does not know. As many as the model has logits.
        end_ids: the ids that end an answer, at least one.
        special: the special tokens by the text that names them, such as "<|im_end|>".
        encode: the usual spelling of a text in tokens, without special ones; None: not known.
    """

    tokens: tuple[bytes, ...]
    end_ids: tuple[int, ...]
    special: tuple[tuple[str, int], ...] = ()
    encode: Callable[[str], list[int]] | None = None

    @property
    def mask_words(self) -> int:
        """Length of a mask: a bit for each token, in words of 32."""
        return -(-len(self.tokens) // 32)


class GrammarError(ValueError):
    """A constraint is not well formed, or too large; the text goes to the client."""


class Matcher(Protocol):
    """How far one sequence has come. Used by one thread."""

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write into [mask_words] which tokens may come next: token i is bit i % 32 of word i / 32.

        An end token may come exactly when the answer is complete. Of several spellings of one text
        the mask may have less than ``accept`` takes. No bit is set where nothing may come any more;
        bits past the last token are of no account. GrammarError: what may come cannot be told, such
        as when it would take too long; it fails the request.
        """

    def accept(self, token: int) -> bool:
        """Take the token that came. False, and nothing changed, if it may not come here.

        GrammarError: what follows it cannot be told; it fails the request.
        """

    def rollback(self, tokens: int) -> None:
        """Take back the last tokens that were accepted, an end token included."""


class Grammar(Protocol):
    """A compiled constraint. Shared by all sequences that have it."""

    def matcher(self) -> Matcher:
        """At the beginning of an answer; microseconds."""


class GrammarLibrary(Protocol):
    """A backend with the tokens of one model."""

    def compile(self, constraint: Constraint) -> bytes:
        """All the work that can be done before a sequence begins. GrammarError says what is wrong.

        May take long: it runs apart, and is ended when its time is over. Only for constraints that
        the backend accepts.
        """

    def load(self, compiled: bytes) -> Grammar:
        """What ``compile`` of the same version made of it, in another process; milliseconds."""


class GrammarBackend(Protocol):
    """One way to constrain answers. Several may be installed: each constraint has its choice."""

    @property
    def name(self) -> str:
        """As in the manifest."""

    def accept(self, constraint: Constraint) -> Verdict:
        """Whether it honours all of a constraint, and how well. Pure, and asked without ``open``.

        A Decline names what is not honoured, such as a keyword of a schema and where it stands. A
        constraint that is malformed may be accepted: ``compile`` says what is wrong with it.
        """

    def open(self, vocabulary: Vocabulary) -> GrammarLibrary:
        """Import the library and prepare it for a model's tokens."""
