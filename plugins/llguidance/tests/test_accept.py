# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What is declined, and what is said of structural tags that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenspeed_llguidance import UNIMPLEMENTED, LLGuidance
from tokenspeed_llguidance.tags import tags_to_lark
from tokenspeed_sdk.contracts.grammar import Constraint, GrammarError
from tokenspeed_sdk.contracts.probe import Decline
from tokenspeed_sdk.testing.grammar.vocabulary import small_vocabulary


@pytest.fixture(scope="module")
def library() -> Any:
    return LLGuidance().open(small_vocabulary())


@pytest.mark.parametrize("keyword", sorted(UNIMPLEMENTED))
def test_a_keyword_that_is_declined_is_one_that_the_library_refuses(
    library: Any, keyword: str
) -> None:
    """So that none is declined for nothing; its value is of the kind that the keyword takes."""
    value: Any = {"type": "string"}
    if keyword.startswith(("min", "max")):
        value = 1
    elif keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        value = {"a": ["b"]} if keyword != "dependentSchemas" else {"a": {"required": ["b"]}}
    elif keyword in ("uniqueItems",):
        value = True
    elif keyword.startswith("$dynamic"):
        value = "#a" if keyword == "$dynamicRef" else "a"
    constraint = Constraint("json_schema", json.dumps({"properties": {"p": {keyword: value}}}))
    verdict = LLGuidance().accept(constraint)
    assert verdict == Decline(f"does not honour {keyword} at #/properties/p")
    with pytest.raises(GrammarError):
        library.compile(constraint)


def test_schemas_within_tags_are_looked_through() -> None:
    content = {"type": "json_schema", "json_schema": {"not": {}}}
    tag = {"format": {"type": "tag", "begin": "<", "content": content, "end": ">"}}
    verdict = LLGuidance().accept(Constraint("structural_tag", json.dumps(tag)))
    assert verdict == Decline("does not honour not at #/format/content/json_schema")


TEXT = {"type": "any_text"}


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ([], 'an object with a "format"'),
        ({"format": {"type": "wat"}}, "type 'wat' is not known; these are: any_text"),
        ({"format": {"type": "tag", "begin": "<"}}, "type tag is malformed: KeyError"),
        ({"format": {"type": "const_string", "value": 5}}, "5 is no text"),
        (
            {"format": {"type": "json_schema", "style": "xml", "json_schema": {}}},
            "style 'xml' is not known",
        ),
        (
            {
                "format": {
                    "type": "triggered_tags",
                    "triggers": ["<a"],
                    "tags": [{"begin": "<b", "content": TEXT, "end": ">"}],
                }
            },
            "no trigger begins the tag '<b'",
        ),
    ],
)
def test_tags_that_cannot_be_read(tag: Any, words: str) -> None:
    with pytest.raises(GrammarError) as caught:
        tags_to_lark(json.dumps(tag), " *")
    assert words in str(caught.value)


PARTS = {
    "type": "sequence",
    "elements": [
        {"type": "const_string", "value": "go "},
        {"type": "or", "elements": [{"type": "regex", "pattern": "a/b+"}, {"type": "tag",
         "begin": "<t>", "content": TEXT, "end": ["</t>", "</u>"]}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "whole"),
    [("go a/bb", True), ("go <t>x <t> y</u>", True), ("go a/", False), ("go <t>x", False)],
)
def test_the_other_parts(library: Any, text: str, whole: bool) -> None:
    constraint = Constraint("structural_tag", json.dumps({"format": PARTS}))
    matcher = library.load(library.compile(constraint)).matcher()
    assert all(matcher.accept(byte) for byte in text.encode())
    assert matcher.accept(small_vocabulary().end_ids[0]) == whole
