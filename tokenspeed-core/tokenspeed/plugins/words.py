# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Words for tables and messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Such as "1 op" or "3 ops"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
