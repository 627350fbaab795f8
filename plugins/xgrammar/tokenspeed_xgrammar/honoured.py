# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What XGrammar 0.2 ignores of a JSON schema. Found by trying each; the tests try again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_IGNORED = (
    *("uniqueItems", "not", "if", "then", "else", "contains", "minContains", "maxContains"),
    *("dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    *("patternProperties", "additionalItems", "$dynamicRef", "$dynamicAnchor", "$anchor"),
    "x-guidance",  # options of another library, which say what the schema means
)
_ANNOTATIONS = frozenset(
    {
        *("$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType"),
        *("default", "definitions", "deprecated", "description", "example", "examples"),
        *("nullable", "readOnly", "title", "writeOnly", "strict"),
    }
)
"""Keywords that constrain nothing."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def ignored(schema: Mapping[str, Any]) -> Iterator[str]:
    """What of one schema, without those inside of it, is not honoured, for people."""
    keywords = [key for key in _IGNORED if key in schema and not _means_nothing(schema, key)]
    yield from map(repr, keywords)
    rest = {key: value for key, value in schema.items() if key not in keywords}
    yield from (what for check in _CHECKS if (what := check(rest)))


def _means_nothing(schema: Mapping[str, Any], keyword: str) -> bool:
    return keyword == "uniqueItems" and schema[keyword] is False


def _quoted(keywords: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(keywords)))


def _beside(keyword: str) -> Callable[[Mapping[str, Any]], str | None]:
    """A check: the keyword stands alone, for others beside it are ignored."""

    def check(schema: Mapping[str, Any]) -> str | None:
        others = schema.keys() - _ANNOTATIONS - {keyword}
        return f"{_quoted(others)} beside {keyword!r}" if keyword in schema and others else None

    return check


def _all_of(schema: Mapping[str, Any]) -> str | None:
    members = schema.get("allOf")
    return "'allOf' of several" if isinstance(members, list) and len(members) > 1 else None


def _one_of(schema: Mapping[str, Any]) -> str | None:
    """It lets through what matches more than one member, so the members' types must differ."""
    members = schema.get("oneOf")
    if not isinstance(members, list) or len(members) < 2:
        return None
    seen: set[str] = set()
    for member in members:
        kind = member.get("type") if isinstance(member, dict) else None
        kind = "number" if kind == "integer" else kind
        if not isinstance(kind, str) or kind in seen:
            return "'oneOf', unless each member has a type of its own"
        seen.add(kind)
    return None


def _enum(schema: Mapping[str, Any]) -> str | None:
    """A type beside ``enum`` or ``const`` is ignored, so it must agree with every value."""
    for keyword in ("enum", "const"):
        if keyword not in schema:
            continue
        others = schema.keys() - _ANNOTATIONS - {keyword, "type"}
        if others:
            return f"{_quoted(others)} beside {keyword!r}"
        values = schema[keyword] if keyword == "enum" else [schema[keyword]]
        if "type" in schema and not _of_type(values, schema["type"]):
            return f"'type' beside {keyword!r}"
    return None


def _of_type(values: Any, kinds: Any) -> bool:
    kinds = kinds if isinstance(kinds, list) else [kinds]
    allowed = [python for kind in kinds for python in _TYPES.get(str(kind), ())]
    return isinstance(values, list) and all(type(value) in allowed for value in values)


def _string(schema: Mapping[str, Any]) -> str | None:
    """Of a pattern, a format and lengths only the first is honoured."""
    said = [key for key in ("pattern", "format") if key in schema]
    said += [key for key in ("minLength", "maxLength") if key in schema and said]
    return f"{_quoted(said[1:])} beside {said[0]!r}" if len(said) > 1 else None


def _required(schema: Mapping[str, Any]) -> str | None:
    names, known = schema.get("required"), schema.get("properties", {})
    if not isinstance(names, list) or not isinstance(known, dict):
        return None
    missing = sorted(str(name) for name in names if name not in known)
    return f"'required' of {_quoted(missing)} without a property" if missing else None


def _reference(schema: Mapping[str, Any]) -> str | None:
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        return f"'$ref' to {reference!r}, which is no path in the schema"
    return None


def _old_forms(schema: Mapping[str, Any]) -> str | None:
    """Of drafts before 2020-12."""
    if isinstance(schema.get("items"), list):
        return "'items' with a list"
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(schema.get(keyword), bool):
            return f"{keyword!r} without a number"
    return None


_CHECKS = (
    *map(_beside, ("$ref", "allOf", "anyOf", "oneOf")),
    *(_all_of, _one_of, _enum, _string, _required, _reference, _old_forms),
)
