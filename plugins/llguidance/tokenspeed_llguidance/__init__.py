# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Structured output by llguidance: JSON schemas, regular expressions, EBNF, structural tags.

It computes each mask when it is asked for, so a grammar costs a millisecond before its first token,
and a schema that it does not honour in full is refused by it, with the keyword.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict
from tokenspeed_sdk.json_schema import named, parts, schemas_of_tags

from tokenspeed_llguidance.numbers import number, rounded

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.grammar import Constraint, GrammarLibrary, Vocabulary

SCORE = 50
"""A backend that fills masks faster may ask for more."""

UNIMPLEMENTED = frozenset(
    {
        *("contains", "minContains", "maxContains", "uniqueItems", "not", "if", "then", "else"),
        *("propertyNames", "dependencies", "dependentRequired", "dependentSchemas"),
        *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$dynamicAnchor"),
    }
)
"""Keywords of JSON Schema that the library refuses."""

OPTIONS = "x-guidance"
"""The library's own keyword: it sets how white space is written and which checks are left out."""


class LLGuidance:
    """The backend; the library is imported by ``open``."""

    name = "llguidance"

    def accept(self, constraint: Constraint) -> Verdict:
        """Declines schemas that the library would not honour in full, also within tags.

        They have a keyword that it does not have, options of its own, or a number that it rounds.
        """
        readers = {"json_schema": parts, "structural_tag": schemas_of_tags}
        if reader := readers.get(constraint.kind):
            found = []
            for path, schema in reader(constraint.text, number):
                keywords = sorted((UNIMPLEMENTED | {OPTIONS}) & schema.keys())
                found += [f"{keyword!r} at {path}" for keyword in keywords]
                found += [f"{what} at {path}, which it rounds" for what in rounded(schema)]
            if found:
                return Decline(f"does not honour {named(found)}")
        return Accept(SCORE, "computes masks as they are asked for")

    def open(self, vocabulary: Vocabulary) -> GrammarLibrary:
        """About 0.2 s for 50,000 tokens."""
        from tokenspeed_llguidance.library import Library

        return Library(vocabulary)
