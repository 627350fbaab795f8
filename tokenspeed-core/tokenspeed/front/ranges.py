# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Values of a caller against their range; InvalidRequest says field, value and range."""

from __future__ import annotations

import math

from tokenspeed.front.errors import InvalidRequest


def check_flag(field: str, value: object) -> None:
    """A bool."""
    if not isinstance(value, bool):
        raise InvalidRequest(field, value, "True or False")


def checked_integer(field: str, value: object, low: int, high: int | None) -> int:
    """An int from ``low`` to ``high``; None for no end."""
    inside = (
        isinstance(value, int)
        and not isinstance(value, bool)
        and low <= value
        and (high is None or value <= high)
    )
    if not inside:
        allowed = f"at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidRequest(field, value, f"an integer {allowed}")
    assert isinstance(value, int)
    return value


def checked_within(field: str, value: object, low: float, high: float) -> float:
    """A finite number from ``low`` to ``high``."""
    allowed = f"from {low:g} to {high:g}"
    number = checked_number(field, value, allowed)
    if not low <= number <= high:
        raise InvalidRequest(field, value, allowed)
    return number


def checked_number(field: str, value: object, allowed: str) -> float:
    """A finite number, as a float; ``allowed`` says which, in the error."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        number = math.inf
    if isinstance(value, bool) or not math.isfinite(number):
        raise InvalidRequest(field, value, allowed)
    return number
