# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A line of answers, in the form of OpenAI's batch API.

Each has the number of its line in the input as ``id``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tokenspeed.batch.lines import BadLine, Line

PREFIX = "line-"
"""Of every ``id``."""

BEGINNING = f'{{"id":"{PREFIX}'.encode()
"""Of every line that a batch writes."""


class Response(msgspec.Struct):
    """What the server said."""

    status_code: int
    request_id: str | None
    body: Any


class Problem(msgspec.Struct):
    """Why there is no response."""

    code: str
    message: str


class Result(msgspec.Struct):
    """A line of the output or of the errors, in the form that OpenAI's batch API gives."""

    id: str
    custom_id: str | None
    response: Response | None = None
    error: Problem | None = None

    @property
    def good(self) -> bool:
        return self.response is not None and self.response.status_code == 200

    @classmethod
    def bad(cls, line: Line, why: BadLine) -> Result:
        """Of a line that asks for nothing."""
        return cls(name_of(line), why.custom_id, error=Problem(why.code, why.message))


class Head(msgspec.Struct):
    """What of a written line says where it belongs."""

    id: str
    custom_id: str | None


_head = msgspec.json.Decoder(Head)


def head_of(content: bytes) -> Head:
    """Of a line that was written. msgspec.DecodeError: it is no result."""
    return _head.decode(content)


def name_of(line: Line) -> str:
    """The ``id`` of a line's result."""
    return f"{PREFIX}{line.number}"
