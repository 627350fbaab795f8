# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The doctor: everything that can be wrong with installed plugins, found without an engine.

This process reads metadata only. Libraries are opened and entry points loaded in processes of
their own, which may crash or hang without harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tokenspeed.plugins.companions import stale_requirements, versions_that_differ
from tokenspeed.plugins.discovery import InstalledPlugin
from tokenspeed.plugins.errors import PluginError
from tokenspeed.plugins.lists import Lists
from tokenspeed.plugins.plan import Planned
from tokenspeed.plugins.separate import open_library, try_in_process
from tokenspeed.plugins.try_load import Tried
from tokenspeed.plugins.usable import conflicts, sort_out

AT_ONCE = 2
"""Processes beside each other: most of their time is the import of torch."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        check: "manifest", "conflict", "library", "load" or "requirement".
        owner: distribution and version.
        what: in one line.
        detail: all of it, with causes.
        fix: the one thing to do.
    """

    check: str
    owner: str
    what: str
    detail: str
    fix: str


@dataclass(frozen=True)
class Load:
    """What a provision did when it was loaded."""

    provision: Planned
    tried: Tried


@dataclass(frozen=True)
class Examination:
    """What was tried and what was found."""

    loads: tuple[Load, ...]
    findings: tuple[Finding, ...]


def examine(plugins: Sequence[InstalledPlugin], lists: Lists) -> Examination:
    """Check all plugins that the lists leave; takes seconds per entry point."""
    allowed = [plugin for plugin in plugins if _matters(plugin, lists)]
    sound = [p for plugin in allowed if plugin.error is None for p in plugin.provisions]
    sound = [p for p in sound if lists.refusal(p.contract, p.name, p.plugin) is None]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = pool.map(try_in_process, sound)
        loads = tuple(map(Load, sound, tried))
    findings = (
        *(_of_error("manifest", plugin.owner, plugin.error) for plugin in allowed if plugin.error),
        *(_of_error("conflict", " and ".join(c.owners), c) for c in conflicts(plugins, sound)),
        *_of_libraries(allowed),
        *(_of_load(load) for load in loads if load.tried.what),
        *_of_requirements(allowed),
    )
    return Examination(loads, findings)


def _matters(plugin: InstalledPlugin, lists: Lists) -> bool:
    """Whether the lists leave something of it."""
    if plugin.error is None:
        refusals = [lists.refusal(p.contract, p.name, plugin.id) for p in plugin.provisions]
        return not refusals or None in refusals
    return bool(sort_out([plugin], lists).refused)


def _of_error(check: str, owner: str, error: PluginError) -> Finding:
    return Finding(check, owner, error.reason, f"{error.what}\n  where: {error.where}", error.fix)


def _of_libraries(plugins: Iterable[InstalledPlugin]) -> Iterator[Finding]:
    for plugin in plugins:
        for native in plugin.native:
            said = native.path and open_library(native)
            if said:
                yield Finding(
                    "library",
                    plugin.owner,
                    f"{native.library.file} does not load: {said.splitlines()[-1]}",
                    f"{native.path}\n{said}",
                    f"install what it is linked against, or the build of {plugin.distribution} "
                    "for this machine",
                )


def _of_load(load: Load) -> Finding:
    tried = load.tried
    what = tried.what.replace("\n  cause: ", "; cause: ").partition("\n")[0]
    return Finding(
        "load", load.provision.owner, what, f"{tried.what}\n  where: {tried.where}", tried.fix
    )


def _of_requirements(plugins: Iterable[InstalledPlugin]) -> Iterator[Finding]:
    distributions = sorted({plugin.distribution for plugin in plugins})
    for stale in (*stale_requirements(distributions), *versions_that_differ()):
        yield Finding("requirement", stale.owner, stale.what, stale.what, stale.fix)
