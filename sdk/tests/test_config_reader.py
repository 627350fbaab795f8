# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Errors of ConfigReader name file, field, rule and value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tokenspeed_sdk.modeling import ConfigReader

READ = ConfigReader(
    {"n": 3, "x": 0.5, "b": True, "act": "gelu", "none": None, "text": "3", "zero": 0}
)


def test_values_and_defaults() -> None:
    assert READ.size("n") == 3
    assert READ.size("none", 4) == READ.size("absent", 4) == 4
    assert READ.number("x") == 0.5
    assert READ.number("n") == 3.0
    assert READ.flag("b")
    assert READ.flag("none", False) is False
    assert READ.choice("act", ("silu", "gelu")) == "gelu"
    READ.absent("none", "because")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: READ.size("none"), "config.json: none is missing; state a positive integer"),
        (lambda: READ.size("text"), "text must be a positive integer; got '3'"),
        (lambda: READ.size("x"), "x must be a positive integer; got 0.5"),
        (lambda: READ.size("b"), "b must be a positive integer; got True"),
        (lambda: READ.size("absent", 0), "absent must be a positive integer; got 0"),
        (lambda: READ.number("zero"), "zero must be a positive number; got 0"),
        (lambda: READ.flag("n"), "n must be true or false; got 3"),
        (lambda: READ.choice("act", ("silu",)), "act must be one of silu; got 'gelu'"),
        (lambda: READ.absent("n", "it is new"), "n is not supported: it is new"),
    ],
)
def test_errors(read: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read()
