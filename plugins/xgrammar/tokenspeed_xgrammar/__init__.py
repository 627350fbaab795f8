# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Structured output by XGrammar: JSON schemas, regular expressions, EBNF and structural tags.

It computes most of a grammar's masks before the first token, so a grammar costs up to a second once
and a mask a few microseconds. Of a JSON schema it ignores what it does not know, so a schema is
declined here unless all of it is known to be honoured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict
from tokenspeed_sdk.json_schema import named, parts, schemas_of_tags

from tokenspeed_xgrammar.honoured import ignored

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.grammar import Constraint, GrammarLibrary, Vocabulary

SCORE = 100


class XGrammar:
    """The backend; the library is imported by ``open``."""

    name = "xgrammar"

    def accept(self, constraint: Constraint) -> Verdict:
        """Declines schemas of which the library ignores something."""
        readers = {"json_schema": parts, "structural_tag": schemas_of_tags}
        if reader := readers.get(constraint.kind):
            found = [
                f"{what} at {path}"
                for path, schema in reader(constraint.text)
                for what in ignored(schema)
            ]
            if found:
                return Decline(f"does not honour {named(found)}")
        return Accept(SCORE, "computes masks before the first token")

    def open(self, vocabulary: Vocabulary) -> GrammarLibrary:
        """Imports torch and Transformers, as the library does: seconds."""
        from tokenspeed_xgrammar.library import Library

        return Library(vocabulary)
