# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Distributions that belong together: what each requires against what is installed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import importlib_metadata
from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from tokenspeed.plugins.discover.origin import reinstall, upgrade

OURS = (
    "tokenspeed",
    "tokenspeed-core",
    "tokenspeed-sdk",
    "tokenspeed-cpu",
    "tokenspeed-models",
    "tokenspeed-nvidia",
    "tokenspeed-llguidance",
    "tokenspeed-xgrammar",
)
"""Distributions of one release."""


@dataclass(frozen=True)
class Stale:
    """A distribution that does not fit the others."""

    owner: str
    what: str
    fix: str


def stale_requirements(distributions: Iterable[str]) -> Iterator[Stale]:
    """Each requirement of each distribution that what is installed does not meet.

    A distribution whose metadata cannot be read is one finding, and keeps no other from view.
    """
    for name in distributions:
        try:
            found = importlib_metadata.distribution(name)
            owner, requirements = f"{name} {found.version}", list(found.requires or ())
        except Exception as error:  # whatever stands in that file
            what = f"{name} has no readable metadata: {type(error).__name__}: {error}"
            yield Stale(name, what, reinstall(name))
            continue
        for text in requirements:
            problem = _problem(text)
            if problem is not None:
                yield Stale(owner, f"{owner} {problem}", f"{upgrade(name)}, then 'pip check'")


def versions_that_differ() -> Iterator[Stale]:
    """One finding when our own distributions are not of one version."""
    versions: dict[str, list[str]] = defaultdict(list)
    for name in OURS:
        try:
            versions[importlib_metadata.version(name)].append(name)
        except importlib_metadata.PackageNotFoundError:
            continue
        except Exception as error:  # whatever stands in its metadata
            yield Stale(name, f"{name} has no readable version: {error!r}", reinstall(name))
    if len(versions) > 1:
        text = "; ".join(f"{', '.join(names)} {v}" for v, names in sorted(versions.items()))
        names = " ".join(name for group in versions.values() for name in group)
        yield Stale("tokenspeed", f"companions differ in version: {text}",
                    f"install them together: pip install --upgrade {names}")  # fmt: skip


def _problem(text: str) -> str | None:
    """What is wrong with one line of Requires-Dist, or None."""
    try:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            return None
    except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName) as error:
        return f"has a requirement that cannot be read: {text!r} ({error})"
    try:
        version = importlib_metadata.version(requirement.name)
        versions = requirement.specifier
        met = not versions or versions.contains(Version(version), prereleases=True)
    except importlib_metadata.PackageNotFoundError:
        return f"requires {text}, and {requirement.name} is not installed"
    except Exception as error:  # whatever stands in the metadata of what is required
        return f"requires {text}, and {requirement.name} has no readable version: {error!r}"
    return None if met else f"requires {text}, and {requirement.name} {version} is installed"
