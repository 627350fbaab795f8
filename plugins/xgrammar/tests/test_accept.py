# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Schemas are declined with what is ignored of them and where; ordinary ones are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenspeed_sdk.contracts.grammar import Constraint
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_xgrammar import XGrammar, honoured

DECLINED: list[tuple[Any, str]] = [
    ({"uniqueItems": True}, "'uniqueItems'"),
    ({"unevaluatedProperties": False}, "'unevaluatedProperties'"),
    ({"x-guidance": {"item_separator": ","}, "type": "array"}, "'x-guidance'"),
    ({"allOf": [{}, {}]}, "'allOf' of several"),
    ({"anyOf": [{}], "minimum": 5}, "'minimum' beside 'anyOf'"),
    ({"$ref": "#/a", "type": "integer"}, "'type' beside '$ref'"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf', unless each member has"),
    ({"enum": ["a", 1], "type": "string"}, "'type' beside 'enum'"),
    ({"pattern": "a", "maxLength": 3}, "'maxLength' beside 'pattern'"),
    ({"format": "date", "pattern": "a"}, "'format' beside 'pattern'"),
    ({"required": ["q"]}, "'required' of 'q' without a property"),
    ({"$ref": "#name"}, "'$ref' to '#name', which is no path in the schema"),
    ({"items": [{}]}, "'items' with a list"),
    ({"exclusiveMinimum": True}, "'exclusiveMinimum' without a number"),
]
ORDINARY: list[Any] = [
    {},
    {"uniqueItems": False, "type": "array", "items": {"type": "integer"}},
    {"allOf": [{"type": "integer"}], "description": "one member"},
    {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}, "title": "t"},
    {"enum": ["a", "b"], "type": "string", "default": "a"},
    {"type": "string", "minLength": 1, "maxLength": 3},
    {"properties": {"not": {"type": "string"}}, "required": ["not"]},
    {"enum": [{"not": 1}]},
]


def test_no_keyword_is_both_ignored_and_of_no_account() -> None:
    assert not {*honoured._IGNORED} & honoured._ANNOTATIONS


def verdict(kind: str, value: Any) -> Any:
    return XGrammar().accept(Constraint(kind, json.dumps(value)))


@pytest.mark.parametrize(("schema", "what"), DECLINED)
def test_what_is_ignored_is_named_with_its_place(schema: Any, what: str) -> None:
    found = verdict("json_schema", {"type": "object", "properties": {"p": schema}})
    assert isinstance(found, Decline)
    assert found.why.startswith(f"does not honour {what}")
    assert found.why.endswith(" at #/properties/p")
    tag = {"type": "tag", "begin": "", "end": "",
           "content": {"type": "json_schema", "json_schema": schema}}  # fmt: skip
    assert isinstance(verdict("structural_tag", {"format": tag}), Decline)


@pytest.mark.parametrize("schema", ORDINARY)
def test_ordinary_schemas_are_accepted(schema: Any) -> None:
    assert isinstance(verdict("json_schema", schema), Accept)


def test_all_that_is_ignored_is_named() -> None:
    members = [{"type": "object", "not": {}, "required": ["q", "r"]}, {"$ref": "#/a", "if": {}}]
    assert verdict("json_schema", {"allOf": members, "type": "object", "minProperties": 1}) == (
        Decline(
            "does not honour 'minProperties', 'type' beside 'allOf' at #, "
            "'allOf' of several at #, 'not' at #/allOf/0, "
            "'required' of 'q', 'r' without a property at #/allOf/0, 'if' at #/allOf/1"
        )
    )
