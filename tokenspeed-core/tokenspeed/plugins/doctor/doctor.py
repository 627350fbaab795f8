# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The doctor: everything that can be wrong with installed plugins, found without an engine.

This process reads metadata only. Libraries are opened and entry points loaded in processes of
their own, which may crash or hang without harm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from tokenspeed.plugins.choose.lists import Lists
from tokenspeed.plugins.choose.usable import conflicts, sort_out
from tokenspeed.plugins.discover.build_tags import NativeFile, installed_build, mismatches
from tokenspeed.plugins.discover.discovery import InstalledPlugin
from tokenspeed.plugins.doctor.apart import open_library, try_in_process
from tokenspeed.plugins.doctor.companions import stale_requirements, versions_that_differ
from tokenspeed.plugins.doctor.try_load import Tried
from tokenspeed.plugins.errors import PluginError
from tokenspeed.plugins.plan import Planned

AT_ONCE = max(2, min(8, len(os.sched_getaffinity(0))))
"""Processes beside each other: nearly all of their time is the import of torch, which also takes
memory."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        check: "manifest", "conflict", "library", "load" or "requirement".
        owner: distribution and version.
        what: in one line.
        where: file and line, or entry point.
        detail: all of it, with causes.
        fix: the one thing to do.
    """

    check: str
    owner: str
    what: str
    where: str
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


def examine(
    plugins: Sequence[InstalledPlugin], lists: Lists, tell: Callable[[Load], None] | None = None
) -> Examination:
    """Check all plugins that the lists leave; takes seconds per entry point.

    Args:
        tell: hears of each as soon as it was loaded, in any order.
    """
    allowed = [plugin for plugin in plugins if _matters(plugin, lists)]
    sound = [p for plugin in allowed if plugin.error is None for p in plugin.provisions]
    sound = [p for p in sound if lists.refusal(p.contract, p.name, p.plugin) is None]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        opened = [pool.submit(_open, *library) for library in _libraries(allowed)]
        loading = {pool.submit(try_in_process, planned): planned for planned in sound}
        for done in as_completed(loading):
            if tell is not None:
                tell(Load(loading[done], done.result()))
    loads = tuple(Load(planned, done.result()) for done, planned in loading.items())
    libraries = [finding for done in opened if (finding := done.result()) is not None]
    findings = (
        *(_of_error("manifest", plugin.owner, plugin.error) for plugin in allowed if plugin.error),
        *(_of_error("conflict", " and ".join(c.owners), c) for c in conflicts(plugins, sound)),
        *libraries,
        *(_of_load(load) for load in loads if load.tried.what and not _told(load, libraries)),
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
    detail = f"{error.what}\n  where: {error.where}"
    return Finding(check, owner, error.reason, error.where, detail, error.fix)


def _libraries(
    plugins: Iterable[InstalledPlugin],
) -> Iterator[tuple[InstalledPlugin, NativeFile]]:
    """Those that may be opened: one whose tags refuse it already could do harm."""
    for plugin in plugins:
        for native in plugin.native:
            if native.path and not mismatches(native.library, installed_build()):
                yield plugin, native


def _open(plugin: InstalledPlugin, native: NativeFile) -> Finding | None:
    said = open_library(native)
    if not said:
        return None
    return Finding(
        "library",
        plugin.owner,
        f"{native.library.file} does not load: {said.splitlines()[-1]}",
        native.path,
        f"{native.path}\n{said}",
        f"install what it is linked against, or the build of {plugin.distribution} "
        "for this machine",
    )


def _told(load: Load, libraries: Iterable[Finding]) -> bool:
    """Whether it failed because of a library about which all is said."""
    return any(
        finding.owner == load.provision.owner and finding.where in load.tried.what
        for finding in libraries
    )


def _of_load(load: Load) -> Finding:
    tried = load.tried
    what = tried.what.replace("\n  cause: ", "; cause: ").partition("\n")[0]
    detail = f"{tried.what}\n  where: {tried.where}"
    return Finding("load", load.provision.owner, what, tried.where, detail, tried.fix)


def _of_requirements(plugins: Iterable[InstalledPlugin]) -> Iterator[Finding]:
    distributions = sorted({plugin.distribution for plugin in plugins})
    for stale in (*stale_requirements(distributions), *versions_that_differ()):
        where = "installed metadata"
        yield Finding("requirement", stale.owner, stale.what, where, stale.what, stale.fix)
