# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The parts of a JSON schema, for grammar backends that must know what they do not honour.

Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MAX_DEPTH = 128
"""Deeper texts are refused before any backend sees them: neither is looked into further."""

_ONE = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_LIST = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_BY_NAME = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties",
            "properties")  # fmt: skip


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])', re.DOTALL)


def depth(text: str) -> int:
    """How deep lists and objects of a JSON text are nested; of any other text it is a guess."""
    deepest = now = 0
    for token in _TOKENS.finditer(text):
        now += (token[1] is not None) - (token[2] is not None)
        deepest = max(deepest, now)
    return deepest


class Part(NamedTuple):
    """A schema inside of a schema.

    Attributes:
        path: where it stands, as a JSON pointer behind "#".
    """

    path: str
    schema: Mapping[str, Any]


def parts(text: str) -> list[Part]:
    """The schema itself and all below it, each once; none for a text that is no JSON object.

    What is only data (``enum``, ``const``, ``default``, ``examples``) holds no schemas.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return list(_parts("#", schema, MAX_DEPTH))


def _parts(path: str, schema: Any, depth: int) -> Iterator[Part]:
    if not isinstance(schema, dict) or depth == 0:
        return
    yield Part(path, schema)
    for where, below in _below(schema):
        yield from _parts(f"{path}/{where}", below, depth - 1)


def _below(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _ONE:
        if isinstance(schema.get(key), dict):
            yield key, schema[key]
    for key in _LIST:
        if isinstance(schema.get(key), list):
            yield from ((f"{key}/{i}", each) for i, each in enumerate(schema[key]))
    for key in _BY_NAME:
        if isinstance(schema.get(key), dict):
            yield from ((f"{key}/{name}", each) for name, each in schema[key].items())


def schemas_of_tags(text: str) -> list[Part]:
    """The JSON schemas inside of a structural tag, and their parts; none for any other text."""
    try:
        tag = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return list(_of_tag("#", tag, MAX_DEPTH))


def _of_tag(path: str, value: Any, depth: int) -> Iterator[Part]:
    if depth == 0:
        return
    if isinstance(value, list):
        for i, each in enumerate(value):
            yield from _of_tag(f"{path}/{i}", each, depth - 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            reader = _parts if key in ("json_schema", "schema") else _of_tag
            yield from reader(f"{path}/{key}", each, depth - 1)
