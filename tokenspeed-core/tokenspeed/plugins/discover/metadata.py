# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The entry points of installed distributions, as far as they are ours. Broken metadata of one
distribution is a value that says so, and keeps no other from view."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import importlib_metadata
from importlib_metadata import Distribution
from tokenspeed_sdk.contracts.manifest import CONTRACTS, PLUGIN_GROUP, RESERVED

from tokenspeed.plugins.errors import did_you_mean

PREFIX = "tokenspeed."

_READ = ("entry_points.txt", "METADATA", "PKG-INFO")

CODE_GROUPS = {f"{PREFIX}{contract}": contract for contract in CONTRACTS}


@dataclass
class Metadata:
    """What one distribution says.

    Attributes:
        manifests: id of a plugin -> entry point value of its manifest.
        code: (contract, name) -> entry point value.
        problem: what is wrong with it, "" when nothing is.
    """

    distribution: str
    version: str
    manifests: dict[str, str] = field(default_factory=dict)
    code: dict[tuple[str, str], str] = field(default_factory=dict)
    problem: str = ""

    @property
    def owner(self) -> str:
        return f"{self.distribution} {self.version}"


def read_distributions() -> list[Metadata]:
    """Those with entry points of ours. Of one that is found twice, the first counts: it is the
    one that Python imports."""
    found: dict[str, Metadata] = {}
    for distribution in cast("Iterable[Distribution]", importlib_metadata.distributions()):
        metadata = _read(distribution)
        if metadata is not None:
            found.setdefault(re.sub(r"[-_.]+", "-", metadata.distribution).lower(), metadata)
    return list(found.values())


def _read(distribution: Distribution) -> Metadata | None:
    """None for a distribution that is no business of ours."""
    if irregular := _irregular(distribution):
        return Metadata(_folder(distribution), "?", problem=f"{irregular} is no regular file")
    try:
        entries = [e for e in distribution.entry_points if e.group.startswith(PREFIX)]
    except Exception as error:  # whatever stands in that file, others must be found
        if not _may_be_ours(distribution):
            return None
        return Metadata(_folder(distribution), "?", problem=printable(f"entry points: {error}"))
    if not entries:
        return None
    try:
        metadata = Metadata(printable(distribution.name), printable(distribution.version))
    except Exception as error:
        metadata = Metadata(_folder(distribution), "?", problem=printable(f"metadata: {error}"))
    readable = not metadata.problem
    for entry in entries:
        name, value = printable(entry.name), printable(entry.value)
        if entry.group == PLUGIN_GROUP and not readable:
            continue  # whose manifest it is cannot be said
        if entry.group == PLUGIN_GROUP:
            metadata.manifests[name] = value
        elif entry.group in CODE_GROUPS:
            metadata.code[CODE_GROUPS[entry.group], name] = value
        else:
            metadata.problem = _unknown_group(entry.group)
    return metadata


def _irregular(distribution: Distribution) -> str:
    """A file of its metadata whose reading may never end, such as a pipe; "" when none is."""
    folder = getattr(distribution, "_path", None)
    if not isinstance(folder, Path):
        return ""
    for name in _READ:
        with suppress(OSError):  # absent, or unreadable, which its reading will say
            mode = (folder / name).stat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                return name
    return ""


def printable(text: str) -> str:
    """The same, with what would steer a terminal escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _unknown_group(group: str) -> str:
    group = printable(group)
    if group.removeprefix(PREFIX) in RESERVED:
        return f'entry point group "{group}" is reserved: no engine serves it yet'
    return (
        f'unknown entry point group "{group}"; {did_you_mean(group, [PLUGIN_GROUP, *CODE_GROUPS])}'
    )


def _may_be_ours(distribution: Distribution) -> bool:
    try:
        return f"[{PREFIX}" in (distribution.read_text("entry_points.txt") or "")
    except (OSError, UnicodeError):
        return True


def _folder(distribution: Distribution) -> str:
    """The name that its folder has, for want of another."""
    folder = Path(str(getattr(distribution, "_path", "unknown")))
    return printable(folder.name.partition("-")[0])
