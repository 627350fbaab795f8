# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Constraints with answers that match them and answers that do not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tokenspeed_sdk.contracts.grammar import Constraint


@dataclass(frozen=True)
class Example:
    """A constraint that every backend which accepts its kind must honour.

    Attributes:
        good: whole answers.
        bad: answers that leave the grammar, or end too early.
    """

    name: str
    constraint: Constraint
    good: tuple[str, ...]
    bad: tuple[str, ...]


@dataclass(frozen=True)
class Keyword:
    """A schema whose keyword must be honoured, or the schema refused with the keyword's name."""

    name: str
    schema: Any
    bad: str

    @property
    def constraint(self) -> Constraint:
        return Constraint("json_schema", json.dumps(self.schema))


def _schema(schema: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


_TOOL = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "name": {"const": "add"},
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "note": {"type": "string"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    },
}
_TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["kids"],
            "additionalProperties": False,
        }
    },
}
_TAGS = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "tags": [
            {
                "type": "tag",
                "begin": "<f=add>",
                "content": {
                    "type": "json_schema",
                    "json_schema": {
                        "type": "object",
                        "properties": {"a": {"type": "integer"}},
                        "required": ["a"],
                        "additionalProperties": False,
                    },
                },
                "end": "</f>",
            }
        ],
        "at_least_one": False,
        "stop_after_first": False,
    },
}


def _tag(begin: str, end: str, **properties: Any) -> dict[str, Any]:
    content = {"type": "object", "properties": properties, "required": list(properties),
               "additionalProperties": False}  # fmt: skip
    return {"type": "tag", "begin": begin, "end": end,
            "content": {"type": "json_schema", "json_schema": content}}  # fmt: skip


_A, _B = {"a": {"type": "integer"}}, {"b": {"type": "string"}}
_FORCED = {
    "type": "triggered_tags",
    "triggers": ["<f="],
    "tags": [_tag("<f=add>", "</f>", **_A), _tag("<f=ab>", "</f>", **_B)],
    "at_least_one": True,
    "stop_after_first": True,
}
_LIST = {
    "type": "tag",
    "begin": "[",
    "end": "]",
    "content": {
        "type": "tags_with_separator",
        "tags": [_tag("", "", **_A), _tag("", "", **_B)],
        "separator": ", ",
        "at_least_one": True,
    },
}

EXAMPLES = (
    Example(
        "object",
        _schema(
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "age": {"type": "integer", "minimum": 0, "maximum": 150},
                    "tags": {"type": "array", "items": {"enum": ["new", "old"]}, "maxItems": 2},
                },
                "required": ["name", "age"],
                "additionalProperties": False,
            }
        ),
        good=(
            '{"name": "日本 é \\"x\\"", "age": 42}',
            '{"name":"","age":0,"tags":["new","old"]}',
            '{"name": "ab", "age": 150, "tags": []}',
        ),
        bad=(
            '{"name": "ab"}',
            '{"name": "ab", "age": 151}',
            '{"name": "ab", "age": 4, "more": 1}',
            '{"name": "ab", "age": 4, "tags": ["new", "odd"]}',
            '{"name": "ab", "age": 4} ab',
            "ab",
        ),
    ),
    Example(
        "any object",
        _schema({"type": "object"}),
        good=("{}", '{"a": [1, null, {"b": true}], "é": -1.5e3}'),
        bad=("[]", '{"a": }', '{"a" 1}', "1"),
    ),
    Example(
        "any JSON",
        _schema({}),
        good=("null", '"ab"', "[]", '{"a": 12}', "-0.5"),
        bad=("ab", "[1,]", ""),
    ),
    Example(
        "tool call",
        _schema(_TOOL),
        good=('[{"name": "add", "parameters": {"a": 12, "note": "</f>"}}]',),
        bad=("[]", '[{"name": "sub", "parameters": {"a": 12}}]', '[{"name": "add"}]'),
    ),
    Example(
        "recursive",
        _schema(_TREE),
        good=('{"kids": []}', '{"kids": [{"kids": []}, {"kids": []}]}'),
        bad=('{"kids": [1]}', '{"kids": [{}]}'),
    ),
    Example(
        "number",
        Constraint("regex", r"[0-9]{3}-(ab|ba)+"),
        good=("123-ab", "000-abbaab"),
        bad=("12-ab", "123-", "123-aba", "123-ab."),
    ),
    Example(
        "words",
        Constraint("ebnf", 'root ::= word (" " word)*\nword ::= [a-z]+ | "日本"'),
        good=("ab", "ab ba 日本"),
        bad=("", "ab ", "AB", "ab  ba"),
    ),
    Example(
        "tags",
        Constraint("structural_tag", json.dumps(_TAGS)),
        good=("ab", 'ab <f=add>{"a": 12}</f> ba', '<f=add>{"a":1}</f><f=add>{"a":2}</f>'),
        bad=('<f=sub>{"a": 12}</f>', "<f=add>{}</f>", '<f=add>{"a": 12}'),
    ),
    Example(
        "one of the tags",
        Constraint("structural_tag", json.dumps({"format": _FORCED})),
        good=('<f=add>{"a": 12}</f>', '<f=ab>{"b": "ba"}</f>'),
        bad=(
            "ab",
            'ab <f=add>{"a": 12}</f>',
            '<f=ab>{"a": 12}</f>',
            '<f=add>{"a": 12}</f><f=add>{"a": 12}</f>',
        ),
    ),
    Example(
        "a list of tags",
        Constraint("structural_tag", json.dumps({"format": _LIST})),
        good=('[{"a": 12}]', '[{"a": 12}, {"b": "ab"}]'),
        bad=("[]", '[{"a": 12} {"b": "ab"}]', '[{"a": 12}, ]', '{"a": 12}'),
    ),
)

MALFORMED = (
    Constraint("json_schema", "{not json"),
    Constraint("json_schema", '"ab"'),
    Constraint("json_schema", '{"type": "wat"}'),
    Constraint("json_schema", '{"$ref": "#/$defs/none"}'),
    Constraint("json_schema", '{"type": "integer", "minimum": 5, "maximum": 1}'),
    Constraint("regex", "(abc"),
    Constraint("ebnf", "root ::= nowhere"),
    Constraint("ebnf", ""),
    Constraint("structural_tag", "{not json"),
    Constraint("structural_tag", '{"type": "structural_tag", "format": {"type": "wat"}}'),
)

_AB: dict[str, Any] = {"a": {}, "b": {}}
KEYWORDS = (
    Keyword("uniqueItems", {"type": "array", "uniqueItems": True}, "[1,1]"),
    Keyword("not", {"not": {"type": "string"}}, '"ab"'),
    Keyword("if", {"if": {"type": "string"}, "then": {"minLength": 3}}, '"a"'),
    Keyword("contains", {"type": "array", "contains": {"const": 1}}, "[2]"),
    Keyword("propertyNames", {"type": "object", "propertyNames": {"pattern": "^a$"}}, '{"b":1}'),
    Keyword("minProperties", {"type": "object", "minProperties": 2}, '{"a":1}'),
    Keyword(
        "patternProperties",
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}},
        '{"xa":"s"}',
    ),
    Keyword(
        "dependentRequired",
        {"type": "object", "properties": _AB, "dependentRequired": {"a": ["b"]}},
        '{"a":1}',
    ),
    Keyword(
        "dependentSchemas",
        {"type": "object", "properties": _AB, "dependentSchemas": {"a": {"required": ["b"]}}},
        '{"a":1}',
    ),
    Keyword("unevaluatedProperties", {"properties": _AB, "unevaluatedProperties": False},
            '{"c":1}'),
    Keyword("allOf", {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]}, "100"),
    Keyword("oneOf", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1"),
    Keyword("beside anyOf", {"type": "integer", "anyOf": [{"minimum": 5}]}, "0"),
    Keyword(
        "beside $ref",
        {"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a", "minimum": 5},
        "3",
    ),
    Keyword("type beside enum", {"type": "string", "enum": ["a", 1]}, "1"),
    Keyword("length beside pattern", {"type": "string", "pattern": "^a+$", "maxLength": 2},
            '"aaa"'),
    Keyword("length beside format", {"type": "string", "format": "date", "maxLength": 3},
            '"2020-01-02"'),
    Keyword("required without properties", {"type": "object", "required": ["q"]}, "{}"),
    Keyword("items of a tuple", {"type": "array", "items": [{"type": "integer"}]}, '["a"]'),
    Keyword("$anchor", {"$defs": {"q": {"$anchor": "x", "type": "integer"}}, "$ref": "#x"}, '"a"'),
    Keyword("multipleOf", {"type": "integer", "multipleOf": 7}, "8"),
    Keyword("minLength", {"type": "string", "minLength": 3}, '"a"'),
    Keyword("pattern", {"type": "string", "pattern": "^a+$"}, '"b"'),
    Keyword("format", {"type": "string", "format": "date"}, '"a"'),
    Keyword("exclusiveMinimum", {"type": "number", "exclusiveMinimum": 5}, "5"),
    Keyword("prefixItems", {"type": "array", "prefixItems": [{"type": "integer"}],
                            "items": False}, "[1,2]"),
    Keyword("const", {"const": {"a": 1}}, '{"a": 2}'),
    Keyword("type list", {"type": ["integer", "null"]}, '"a"'),
)  # fmt: skip
