# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Structural tags as a grammar of the library: free text, in which tags have their own content.

A tag is a text that begins it, a content, and a text that ends it. Free text ends where a trigger
stands in it, and from there a tag that begins with the trigger must follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenspeed_sdk.contracts.grammar import GrammarError

TEXT = "/(.|\\n)*/"

_ESCAPED = re.compile(r"\\.|/", re.DOTALL)
"""A character that is escaped already, or a slash."""


def tags_to_lark(text: str, whitespace: str) -> str:
    """The grammar of a structural tag. GrammarError: it has a part that is not known here.

    Args:
        whitespace: a regular expression of what may stand between the parts of a JSON text.
    """
    try:
        tag = json.loads(text)
    except ValueError as error:
        raise GrammarError(f"it is not JSON: {error}") from error
    if not isinstance(tag, dict) or not isinstance(tag.get("format"), dict):
        raise GrammarError('it must be an object with a "format"')
    return _Writer(whitespace).grammar(tag["format"])


class _Writer:
    """Writes a rule for each part."""

    def __init__(self, whitespace: str) -> None:
        self._whitespace = whitespace
        self._rules: list[str] = []
        self._kinds: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
            "any_text": self._any_text,
            "const_string": lambda part: _quoted(part["value"]),
            "json_schema": self._json_schema,
            "or": lambda part: self._any_of(part["elements"]),
            "regex": lambda part: self._rule(f"/{_ESCAPED.sub(_escape, part['pattern'])}/"),
            "sequence": lambda part: self._rule(" ".join(map(self._part, part["elements"]))),
            "tag": self._tag,
            "tags_with_separator": self._separated,
            "triggered_tags": self._triggered,
        }

    def grammar(self, part: Mapping[str, Any]) -> str:
        start = self._part(part)
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules])

    def _part(self, part: Any) -> str:
        """The name of a rule, or a quoted text. GrammarError names what is wrong with it."""
        kind = part.get("type", "tag") if isinstance(part, dict) else None
        if kind not in self._kinds:
            known = ", ".join(self._kinds)
            raise GrammarError(f"a part of type {kind!r} is not known; these are: {known}")
        try:
            return self._kinds[kind](part)
        except (KeyError, TypeError, AttributeError) as error:
            raise GrammarError(f"a part of type {kind} is malformed: {error!r}") from error

    def _rule(self, body: str, mark: str = "") -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{mark}: {body}")
        return name

    def _any_of(self, parts: Sequence[Any]) -> str:
        return self._rule(" | ".join([self._part(part) for part in parts]))

    def _any_text(self, part: Mapping[str, Any]) -> str:
        return self._rule(TEXT)

    def _json_schema(self, part: Mapping[str, Any]) -> str:
        if part.get("style", "json") != "json":
            raise GrammarError(f"JSON in the style {part['style']!r} is not known")
        schema = part["json_schema"]
        schema = dict(schema) if isinstance(schema, dict) else {"allOf": [schema]}
        options = {"x-guidance": {"whitespace_pattern": self._whitespace}}
        return self._rule(f"%json {json.dumps(schema | options)}")

    def _tag(self, part: Mapping[str, Any], begin: str | None = None) -> str:
        """``begin``: instead of the text that begins it, of which a part has come."""
        begins = _quoted(part["begin"]) if begin is None else begin
        end = part["end"]
        ends = [end] if isinstance(end, str) else end
        if part["content"].get("type") == "any_text":  # it goes up to the end's first place
            closed = self._any_of_lazy(ends)
            return self._rule(f"{begins} {closed}")
        closing = " | ".join(_quoted(each) for each in ends)
        return self._rule(f"{begins} {self._part(part['content'])} ({closing})")

    def _any_of_lazy(self, ends: Sequence[str]) -> str:
        return self._rule(" | ".join([self._until(end) for end in ends]))

    def _until(self, text: str) -> str:
        """Free text up to the first place of a text, which is part of it."""
        free = f"TEXT_{len(self._rules)}"
        self._rules.append(f"{free}: {TEXT}")
        return self._rule(f"{free} {_quoted(text)}", "[lazy]")

    def _separated(self, part: Mapping[str, Any]) -> str:
        tag = self._any_of(part["tags"])
        more = "" if part.get("stop_after_first") else f" ({_quoted(part['separator'])} {tag})*"
        optional = "" if part.get("at_least_one") else "?"
        return self._rule(f"({tag}{more}){optional}")

    def _triggered(self, part: Mapping[str, Any]) -> str:
        once = bool(part.get("stop_after_first"))
        if part.get("at_least_one"):
            first = self._any_of(part["tags"])
            return first if once else self._rule(f"{first} {self._behind_triggers(part)}")
        if not once:
            return self._behind_triggers(part)
        return self._rule(f"{self._any_triggered(part)} | {self._rule(TEXT)}")

    def _behind_triggers(self, part: Mapping[str, Any]) -> str:
        """Any number of tags in free text."""
        return self._rule(f"({self._any_triggered(part)})* {self._rule(TEXT)}")

    def _any_triggered(self, part: Mapping[str, Any]) -> str:
        """Free text, and one of the tags behind it."""
        bodies = []
        for tag in part["tags"]:
            fitting = [t for t in part["triggers"] if tag["begin"].startswith(t)]
            if not fitting:
                raise GrammarError(f"no trigger begins the tag {tag['begin']!r}")
            trigger = max(fitting, key=len)
            rest = tag["begin"][len(trigger) :]
            begun = f"{self._until(trigger)} {_quoted(rest) if rest else ''}"
            bodies.append(self._tag(tag, begun))
        return self._rule(" | ".join(bodies))


def _escape(found: re.Match[str]) -> str:
    return r"\/" if found[0] == "/" else found[0]


def _quoted(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no text")
    return json.dumps(text) if text else '""'
