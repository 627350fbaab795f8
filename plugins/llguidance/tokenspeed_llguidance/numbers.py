# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Numbers of a JSON schema that the library rounds: it holds each as a double."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

_KEYWORDS = ("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum",
             "multipleOf")  # fmt: skip


class Rounded(str):
    """A number that the library would change, as it is written."""

    __slots__ = ()


def number(text: str) -> float | Rounded:
    """The value of a number of a JSON text, or the text itself where the library has another."""
    return float(text) if _is_kept(text) else Rounded(text)


def _is_kept(text: str) -> bool:
    """Whether the library writes the same value for it.

    It writes the shortest digits that make the double, but an integer from 2**53 on as the double
    has it, if it fits 64 bits.
    """
    try:
        written = Decimal(text)
    except InvalidOperation:  # the exponent is out of all bounds
        return False
    double = float(text)
    is_shortest = written == Decimal(repr(double))
    if abs(double) < 2**53:
        return is_shortest
    return written == Decimal(double) and (abs(double) < 2**63 or is_shortest)


def rounded(schema: Mapping[str, Any]) -> Iterator[str]:
    """The first such number of each keyword of one schema, for people."""
    for keyword in _KEYWORDS:
        found = _first(schema.get(keyword))
        if found is not None:
            yield f"the number {found} of {keyword!r}"


def _first(data: Any) -> Rounded | None:
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Rounded):
            return value
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return None
