# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The parts of a JSON schema, for grammar backends that must know what they do not honour.

Standard library only.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

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


MOST_NAMED = 20
"""Of what a schema has too much of: a message is no book."""


def named(found: Sequence[str]) -> str:
    """All of them for people; of very many the first, and how many more there are."""
    more = len(found) - MOST_NAMED
    return ", ".join(found[:MOST_NAMED]) + (f", and {more} more" if more > 0 else "")


class Part(NamedTuple):
    """A schema inside of a schema.

    Attributes:
        path: where it stands, as a JSON pointer behind "#".
    """

    path: str
    schema: Mapping[str, Any]


def parts(text: str, number: Callable[[str], Any] | None = None) -> list[Part]:
    """The schema itself and all below it, each once; none for a text that is no JSON object.

    What is only data (``enum``, ``const``, ``default``, ``examples``) holds no schemas. What a
    local ``$ref`` leads to is a schema wherever it stands.

    Args:
        number: makes a value of a number as it is written, for those who care for more digits
            than Python's own numbers keep.
    """
    try:
        schema = json.loads(text, parse_float=number, parse_int=number)
    except (ValueError, RecursionError):
        return []
    return list(_parts("#", schema, MAX_DEPTH))


def _parts(path: str, root: Any, depth: int) -> Iterator[Part]:
    """``path``: where the schema stands that local references start from."""
    seen = set()
    waiting = deque([(path, root, depth)])
    while waiting:
        where, schema, left = waiting.pop()
        if not isinstance(schema, dict) or left == 0 or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield Part(where, schema)
        reference = schema.get("$ref")
        if isinstance(reference, str) and "#" in reference:
            pointer = unquote(reference.partition("#")[2])
            # Last in line: what also stands in a usual place is named by that.
            waiting.appendleft((path + pointer, _target(root, pointer), depth))
        below = [(f"{where}/{key}", each, left - 1) for key, each in _below(schema)]
        waiting.extend(reversed(below))


def _target(value: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) leads to; None where it leads nowhere."""
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and len(key) < 9:
            value = value[int(key)] if int(key) < len(value) else None
        else:
            return None
    return value


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


def schemas_of_tags(text: str, number: Callable[[str], Any] | None = None) -> list[Part]:
    """The JSON schemas inside of a structural tag, and their parts; none for any other text.

    Args:
        number: as of ``parts``.
    """
    try:
        tag = json.loads(text, parse_float=number, parse_int=number)
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
