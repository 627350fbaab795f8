# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What manifests and config files have in common."""

from __future__ import annotations


def refuse_byte_order_mark(text: str) -> None:
    """ValueError if a TOML file begins with one, which its parser would call a bad statement."""
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark; save it as UTF-8 without one")
