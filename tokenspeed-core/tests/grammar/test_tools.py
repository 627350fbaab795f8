# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Places inside of tools are told by the tool; all others stay."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenspeed.grammar.tools import naming_tools
from tokenspeed_sdk.contracts.grammar import Constraint

SCHEMA = {"type": "object", "properties": {"a": {"uniqueItems": True}, "b": {"not": {}}}}


def calls(*names: str) -> Any:
    """What the gateway makes of tools of which one must be called, as JSON."""
    one = [
        {"properties": {"name": {"enum": [name]}, "parameters": SCHEMA}, "required": ["name"]}
        for name in names
    ]
    return {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": one}}


def tags(*begins: str) -> Any:
    """The same by a family's own tags, inside of another tag."""
    one = [{"begin": b, "content": {"type": "json_schema", "json_schema": SCHEMA}} for b in begins]
    outer = {"begin": "[CALLS]", "content": {"type": "tags_with_separator", "tags": one}}
    return {"format": {"type": "triggered_tags", "tags": [outer]}}


CALL = "#/items/anyOf/{}/properties/parameters"
TAG = "#/format/tags/0/content/tags/{}/content/json_schema"
MANY = [f"t{i}" for i in range(12)]
BEGINS = ['{"name": "get", "arguments": ', "<function=put>"]
TOLD = [
    (
        "json_schema",
        calls("get", "put"),
        CALL.format(1) + "/properties/a",
        "in tool put at #/properties/a",
    ),
    (
        "json_schema",
        calls(*MANY),
        CALL.format(11) + "/properties/b",
        "in tool t11 at #/properties/b",
    ),
    ("json_schema", calls("get"), CALL.format(0), "in tool get at #"),
    ("json_schema", calls("n" * 99), CALL.format(0), f"in tool {'n' * 64} at #"),
    (
        "structural_tag",
        tags(*BEGINS),
        TAG.format(0) + "/properties/a",
        "in tool get at #/properties/a",
    ),
    ("structural_tag", tags(*BEGINS), TAG.format(1), "in tool put at #"),
]
KEPT = [
    ("json_schema", {"properties": {"a": calls("get")}}, "#/properties/a/items/anyOf/0/properties"),
    ("json_schema", calls("get"), "#/items/anyOf/0/properties/name"),
    ("json_schema", calls("get"), CALL.format(7)),
    ("json_schema", SCHEMA, "#/properties/a"),
    ("structural_tag", tags("no name"), TAG.format(0) + "/properties/a"),
    ("regex", calls("get"), CALL.format(0)),
]


@pytest.mark.parametrize(("kind", "value", "place", "told"), TOLD)
def test_a_place_of_a_tool(kind: str, value: Any, place: str, told: str) -> None:
    text = json.dumps(value)
    reason = "one does not honour 'a' {}, 'b' {}, which it rounds; two does not honour 'a' {}"
    given = reason.format(*[f"at {place}"] * 3)
    assert naming_tools(Constraint(kind, text), given) == reason.format(*[told] * 3)


@pytest.mark.parametrize(("kind", "value", "place"), KEPT)
def test_another_place(kind: str, value: Any, place: str) -> None:
    reason = f"one does not honour it at {place}"
    assert naming_tools(Constraint(kind, json.dumps(value)), reason) == reason


def test_a_text_that_is_no_json() -> None:
    for text in ("{", "[" * 100_000):
        assert naming_tools(Constraint("json_schema", text), "at #/a") == "at #/a"
