# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Lines of a batch file: requests in the form that OpenAI's batch API takes.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}

A line that is none becomes a value that says why; no line is ever in memory beyond MOST_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

MOST_BYTES = 64 << 20
"""Of one line: more than any context window, and little beside a model."""

CHAT, COMPLETIONS = URLS = ("/v1/chat/completions", "/v1/completions")

INVALID = "invalid_line"
TOO_LONG = "line_too_long"


@dataclass(frozen=True)
class Line:
    """One line of the input that is not blank.

    Attributes:
        number: of the line in the file, from 1.
        content: without the line break; None: it is too long and was skipped.
        end: offset of the byte behind it.
    """

    number: int
    content: bytes | None
    end: int


@dataclass(frozen=True)
class Request:
    """What a line asks for."""

    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True)
class BadLine:
    """Why a line asks for nothing.

    Attributes:
        custom_id: where the line has one all the same.
        code: INVALID or TOO_LONG.
    """

    custom_id: str | None
    code: str
    message: str


class _Named(msgspec.Struct):
    custom_id: str | None = None


_anything, _named = msgspec.json.Decoder(), msgspec.json.Decoder(_Named)

_FIELDS = (
    ("custom_id", str, 'a text, such as "1"'),
    ("url", str, f"{CHAT} or {COMPLETIONS}"),
    ("body", dict, 'an object, such as {"prompt": "Hi"}'),
)
_AS_IN_HELP = "write it as 'ts batch --help' shows"
_SHOWN = 60
"""Characters of a value in a message."""


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file, one at a time."""
    number = end = 0
    with path.open("rb") as file:
        while content := file.readline(MOST_BYTES + 1):
            number += 1
            end += len(content)
            long = len(content) > MOST_BYTES
            while not content.endswith(b"\n") and (more := file.readline(MOST_BYTES)):
                content = more
                end += len(more)
            if long:
                yield Line(number, None, end)
            elif stripped := content.strip():
                yield Line(number, stripped, end)


def parse(line: Line) -> Request | BadLine:
    """What it asks for, or why it asks for nothing."""
    if line.content is None:
        return BadLine(None, TOO_LONG, f"a line may have {MOST_BYTES} bytes; split the request")
    try:
        fields = _anything.decode(line.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return BadLine(None, INVALID, f"the line is not JSON: {error}; {_AS_IN_HELP}")
    problem = _problem(fields)
    if problem is not None:
        return BadLine(custom_id(line), INVALID, problem)
    return Request(fields["custom_id"], fields["url"], fields["body"])


def custom_id(line: Line) -> str | None:
    """What the line calls itself, if it can be read at all."""
    try:
        return _named.decode(line.content or b"{}").custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _problem(fields: Any) -> str | None:
    """What a line lacks of a request; with the field, its value, and what to do."""
    if not isinstance(fields, dict):
        return f"a line must be a JSON object; got {_shown(fields)}; {_AS_IN_HELP}"
    for name, kind, wanted in _FIELDS:
        if name not in fields:
            return f"{name} is missing; give {wanted}"
        if not isinstance(fields[name], kind):
            return f"{name} must be {wanted}; got {_shown(fields[name])}"
    return _refused(fields, fields["body"])


def _refused(fields: dict[str, Any], body: dict[str, Any]) -> str | None:
    """What of a request a batch has no use for."""
    if fields.get("method", "POST") != "POST":
        return f'method must be "POST", or left out; got {_shown(fields["method"])}'
    if fields["url"] not in URLS:
        return f"url must be {CHAT} or {COMPLETIONS}; got {_shown(fields['url'])}"
    if body.get("stream"):
        return "body.stream has no meaning in a file; leave it out"
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        return f"body.model must be a name; got {_shown(model)}"
    return None


def _shown(value: Any) -> str:
    """As JSON, its beginning at least."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
