# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Distributions that belong together: what each requires against what is installed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import importlib_metadata
from packaging.requirements import InvalidRequirement, Requirement

OURS = (
    "tokenspeed",
    "tokenspeed-core",
    "tokenspeed-sdk",
    "tokenspeed-cpu",
    "tokenspeed-models",
    "tokenspeed-nvidia",
)
"""Distributions of one release."""


@dataclass(frozen=True)
class Stale:
    """A distribution that does not fit the others."""

    owner: str
    what: str
    fix: str


def stale_requirements(distributions: Iterable[str]) -> Iterator[Stale]:
    """Each requirement of each distribution that what is installed does not meet."""
    for name in distributions:
        found = importlib_metadata.distribution(name)
        for text in found.requires or ():
            problem = _problem(text)
            if problem is not None:
                owner = f"{name} {found.version}"
                yield Stale(owner, f"{owner} {problem}", f"pip install --upgrade {name}, then "
                            "'pip check'")  # fmt: skip


def versions_that_differ() -> Iterator[Stale]:
    """One finding when our own distributions are not of one version."""
    versions: dict[str, list[str]] = defaultdict(list)
    for name in OURS:
        try:
            versions[importlib_metadata.version(name)].append(name)
        except importlib_metadata.PackageNotFoundError:
            continue
    if len(versions) > 1:
        text = "; ".join(f"{', '.join(names)} {v}" for v, names in sorted(versions.items()))
        names = " ".join(name for group in versions.values() for name in group)
        yield Stale("tokenspeed", f"companions differ in version: {text}",
                    f"install them together: pip install --upgrade {names}")  # fmt: skip


def _problem(text: str) -> str | None:
    """What is wrong with one line of Requires-Dist, or None."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        return f"has a requirement that cannot be read: {text!r} ({error})"
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    try:
        version = importlib_metadata.version(requirement.name)
    except importlib_metadata.PackageNotFoundError:
        return f"requires {text}, and {requirement.name} is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return f"requires {text}, and {requirement.name} {version} is installed"
