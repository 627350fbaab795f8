# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which engine this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def engine_version() -> str:
    """Of the installed distribution."""
    try:
        return version("tokenspeed-core")
    except PackageNotFoundError:
        return "not installed"  # runs from a source tree
