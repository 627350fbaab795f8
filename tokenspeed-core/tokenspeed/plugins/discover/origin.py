# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Where a distribution was installed from, so that no advice names an index that it is not on."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution


def source_of(name: str) -> str:
    """The URL that pip noted in direct_url.json; "" for what came from an index."""
    try:
        text = distribution(name).read_text("direct_url.json")
        return str(json.loads(text or "{}")["url"])
    except (PackageNotFoundError, OSError, ValueError, LookupError, TypeError):
        return ""  # nothing readable says that it came from elsewhere


def complain(name: str) -> str:
    """What to do about a distribution that is wrong by itself."""
    return f"{mend(name)}, or remove it: pip uninstall {name}"


def mend(name: str) -> str:
    """To whom a fault of a distribution is to be told; whoever has its source is told the place."""
    source = source_of(name)
    if source.startswith("file:"):
        return f"put it right in its source ({source})"
    return f"report it to the authors of {name}"


def reinstall(name: str) -> str:
    """How to install the same again."""
    source = source_of(name)
    if source:
        return f"reinstall it from where it came: {source}"
    return f"pip install --force-reinstall {name}"


def upgrade(name: str) -> str:
    """How to install a newer version."""
    source = source_of(name)
    if source:
        return f"bring {name} up to date where it came from, and reinstall it: {source}"
    return f"pip install --upgrade {name}"
