# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Tools inside of a constraint that the gateway made of them, for a reason that its client reads.

A client that sent tools has never seen the text around their schemas, so a place in that text says
nothing to it: ``at #/items/anyOf/1/properties/parameters/properties/a`` is told as
``in tool get_time at #/properties/a``.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.grammar import Constraint

MAX_NAME = 64
"""Characters of a tool's name, as OpenAI's API has it."""

_PLACE = re.compile(r"\bat (#(?:/[^\s/,;]+)+)")
_OF_LIST = ("items", "anyOf")
_IN_CALL = ("properties", "parameters")
_IN_TAG = ("content", "json_schema")
_BEGIN = re.compile(r'"name": ?"([^"]+)"|<function=([^>]+)>')


def naming_tools(constraint: Constraint, reason: str) -> str:
    """The reason, its places inside of tools' schemas told by the tool."""
    if constraint.kind not in ("json_schema", "structural_tag") or "#/" not in reason:
        return reason
    try:
        root = json.loads(constraint.text)
    except (ValueError, RecursionError):
        return reason
    return _PLACE.sub(lambda place: _of_tool(root, place[1]), reason)


def _of_tool(root: Any, place: str) -> str:
    steps = place.split("/")[1:]
    value = root
    for i, step in enumerate(steps):
        for name, inside in (_call(value, steps[:i]), _tag(value)):
            rest = steps[i + len(inside) :]
            if name is not None and steps[i : i + len(inside)] == [*inside]:
                return f"in tool {name[:MAX_NAME]} at {'/'.join(['#', *rest])}"
        value = _below(value, step)
    return f"at {place}"


def _call(value: Any, path: list[str]) -> tuple[str | None, tuple[str, ...]]:
    """Of a list of calls, one that may be made: an object with the tool's name and parameters."""
    if tuple(path[:-1]) != _OF_LIST:
        return None, _IN_CALL
    match value:
        case {"properties": {"name": {"enum": [str(name)]}, "parameters": _}}:
            return name, _IN_CALL
    return None, _IN_CALL


def _tag(value: Any) -> tuple[str | None, tuple[str, ...]]:
    """Of the family's own tags, one whose beginning has the tool's name."""
    match value:
        case {"begin": str(begin), "content": {"json_schema": _}}:
            if found := _BEGIN.search(begin):
                return found[1] or found[2], _IN_TAG
    return None, _IN_TAG


def _below(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and step.isdecimal() and len(step) < 9 and int(step) < len(value):
        return value[int(step)]
    return None
