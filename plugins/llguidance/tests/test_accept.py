# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What is declined, and what is said of structural tags that cannot be read."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tokenspeed_llguidance import UNIMPLEMENTED, LLGuidance
from tokenspeed_llguidance.tags import tags_to_lark
from tokenspeed_sdk.contracts.grammar import Constraint, GrammarError
from tokenspeed_sdk.contracts.probe import Accept, Decline
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
    assert verdict == Decline(f"does not honour {keyword!r} at #/properties/p")
    with pytest.raises(GrammarError):
        library.compile(constraint)


def test_schemas_within_tags_are_looked_through() -> None:
    content = {"type": "json_schema", "json_schema": {"not": {}}}
    tag = {"format": {"type": "tag", "begin": "<", "content": content, "end": ">"}}
    verdict = LLGuidance().accept(Constraint("structural_tag", json.dumps(tag)))
    assert verdict == Decline("does not honour 'not' at #/format/content/json_schema")


ROUNDED = [
    ('{"const": 9007199254740993}', "9007199254740993 of const at #"),
    ('{"items": {"enum": [1, {"a": [-1234567890123456789]}]}}',
     "-1234567890123456789 of enum at #/items"),
    ('{"const": 18446744073709551616}', "18446744073709551616 of const at #"),
    ('{"const": 0.12345678901234567890}', "0.12345678901234567890 of const at #"),
    ('{"maximum": 9223372036854775807}', "9223372036854775807 of maximum at #"),
    ('{"minimum": 9007199254740993}', "9007199254740993 of minimum at #"),
    ('{"exclusiveMaximum": 9007199254740993}', "9007199254740993 of exclusiveMaximum at #"),
    ('{"exclusiveMinimum": 9007199254740993}', "9007199254740993 of exclusiveMinimum at #"),
    ('{"multipleOf": 9007199254740993}', "9007199254740993 of multipleOf at #"),
    ('{"const": 1e400}', "1e400 of const at #"),
    ('{"const": 1e99999999999999999999}', "1e99999999999999999999 of const at #"),
    ('{"$ref": "#/foo", "foo": {"const": 9007199254740993}}',
     "9007199254740993 of const at #/foo"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "words"), ROUNDED)
def test_a_number_that_a_double_does_not_hold_is_declined(schema: str, words: str) -> None:
    number, _, place = words.partition(" ")
    keyword, at = place.removeprefix("of ").split(" ", 1)
    said = f"does not honour the number {number} of {keyword!r} {at}, which it rounds"
    assert LLGuidance().accept(Constraint("json_schema", schema)) == Decline(said)


def test_a_number_of_thousands_of_digits_is_declined() -> None:
    """Python itself does not read it as an integer."""
    verdict = LLGuidance().accept(Constraint("json_schema", f'{{"const": {"7" * 5000}}}'))
    assert isinstance(verdict, Decline)


@pytest.mark.parametrize(
    "number",
    ["0", "-5", "0.1", "12.5", "9007199254740992", "-9007199254740994", "1234567890123456768",
     "100000000000000000000"],
)  # fmt: skip
def test_a_number_that_is_accepted_is_written_as_it_is(library: Any, number: str) -> None:
    constraint = Constraint("json_schema", f'{{"enum": [[{number}]]}}')
    assert isinstance(LLGuidance().accept(constraint), Accept)
    matcher = library.load(library.compile(constraint)).matcher()
    assert all(matcher.accept(byte) for byte in f"[{number}]".encode())
    assert matcher.accept(small_vocabulary().end_ids[0])


def test_numbers_that_limit_nothing_are_not_looked_at() -> None:
    schema = '{"default": 9007199254740993, "properties": {"const": {"multipleOf": 0.01}}}'
    assert isinstance(LLGuidance().accept(Constraint("json_schema", schema)), Accept)


def test_options_of_the_library_are_declined() -> None:
    """They would switch off its own refusals."""
    text = '{"x-guidance": {"lenient": true}, "items": {}}'
    verdict = LLGuidance().accept(Constraint("json_schema", text))
    assert verdict == Decline("does not honour 'x-guidance' at #")


def test_what_a_reference_leads_to_is_looked_through() -> None:
    text = '{"$ref": "#/foo", "foo": {"uniqueItems": true}}'
    verdict = LLGuidance().accept(Constraint("json_schema", text))
    assert verdict == Decline("does not honour 'uniqueItems' at #/foo")


def test_all_that_is_not_honoured_is_named() -> None:
    text = """{"uniqueItems": true, "not": {}, "const": 9007199254740993,
               "properties": {"a": {"if": {}, "then": {}}}}"""
    assert LLGuidance().accept(Constraint("json_schema", text)) == Decline(
        "does not honour 'not' at #, 'uniqueItems' at #, "
        "the number 9007199254740993 of 'const' at #, which it rounds, "
        "'if' at #/properties/a, 'then' at #/properties/a"
    )


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


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("a/b", "a/b"), (r"a\/b", "a/b"), (r"a\\/b", r"a\/b"), (r"a\\\/b", r"a\/b"), ("//[/]", "///")],
)
def test_slashes_of_a_regular_expression(library: Any, pattern: str, text: str) -> None:
    """One may be escaped already; an even number of backslashes before it escapes it not."""
    assert re.fullmatch(pattern, text)
    tag = json.dumps({"format": {"type": "regex", "pattern": pattern}})
    matcher = library.load(library.compile(Constraint("structural_tag", tag))).matcher()
    assert all(matcher.accept(byte) for byte in text.encode())
    assert matcher.accept(small_vocabulary().end_ids[0])


def test_a_schema_beyond_the_limits_is_refused_when_it_is_compiled(library: Any) -> None:
    """The library notices only when an answer begins."""
    with pytest.raises(GrammarError, match="max is 2000") as error:
        library.compile(Constraint("json_schema", json.dumps(wide_object(600))))
    assert len(str(error.value)) < 200, "it repeats the grammar"


def test_what_is_beyond_the_limits_further_on_is_told_there(library: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"long_enough": wide_object(600)},
        "required": ["long_enough"],
        "additionalProperties": False,
    }
    compiled = library.compile(Constraint("json_schema", json.dumps(schema)))
    matcher = library.load(compiled).matcher()
    tokens = [small_vocabulary().tokens.index(bytes([byte])) for byte in b'{"long_enough":{']
    assert all(matcher.accept(token) for token in tokens[:-1])
    with pytest.raises(GrammarError, match="max is 2000") as error:
        matcher.accept(tokens[-1])
    assert len(str(error.value)) < 200, "it repeats the grammar"


def wide_object(properties: int) -> dict[str, Any]:
    """Any of which may follow any other before it."""
    names = (f"p{number}" for number in range(properties))
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}
