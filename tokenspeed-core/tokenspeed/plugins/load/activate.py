# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Activate: load the objects that a plan names. The first place where a plugin's code runs.

    for active in activate(plan.of("kernel"), read_kernels, needed):
        if active.error is None:
            ...  # commit active.value

A plugin is taken whole or not at all: if one of its objects fails to load or is not what the
contract says, none of that plugin's objects of the contract has a value.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from importlib_metadata import EntryPoint
from stevedore.driver import DriverManager
from tokenspeed_sdk.contracts.platform import Capabilities, Device, Platform
from tokenspeed_sdk.contracts.probe import Verdict

from tokenspeed.plugins.discover.origin import complain
from tokenspeed.plugins.errors import (
    BrokenPromiseError,
    LoadError,
    PluginError,
    forget_frames,
    load_failed,
)
from tokenspeed.plugins.load.plugin_code import as_failure
from tokenspeed.plugins.plan import Planned, PluginPlan

_log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds after which a plugin that still loads is named in the log."""

_SLOW = "%s %s of %s is still loading after %g s; to go on without it: --deny %s=%s"

T = TypeVar("T")


@dataclass(frozen=True)
class Active(Generic[T]):
    """A provision with what ``read`` made of it, or with the error of its plugin."""

    planned: Planned
    value: T | None
    error: PluginError | None


def activate(
    provisions: Iterable[Planned],
    read: Callable[[Planned], T],
    needed: Callable[[Planned], bool] = lambda planned: False,
) -> list[Active[T]]:
    """Load and check provisions, plugin by plugin.

    Args:
        read: loads one provision (with ``load`` or ``call``) and checks what it got.
        needed: whether a launch stands on it, so that its error is raised; of the others the error
            is logged whole and kept.
    """
    plugins: dict[tuple[str, str], list[Planned]] = {}
    for planned in provisions:
        plugins.setdefault((planned.distribution, planned.plugin), []).append(planned)
    return [active for parts in plugins.values() for active in _take_whole(parts, read, needed)]


def _take_whole(
    parts: Sequence[Planned], read: Callable[[Planned], T], needed: Callable[[Planned], bool]
) -> list[Active[T]]:
    values = []
    for planned in parts:
        try:
            values.append(read_one(planned, read))
        except PluginError as error:
            if any(needed(part) for part in parts):
                raise
            name = f"{planned.contract} {planned.name} of {planned.owner}"
            rest = " with the rest of its plugin" if len(parts) > 1 else ""
            _log.warning("%s is left out%s:\n%s", name, rest, error)
            forget_frames(error)
            return [Active(part, None, error) for part in parts]
    return [Active(part, value, None) for part, value in zip(parts, values, strict=True)]


def read_one(planned: Planned, read: Callable[[Planned], T]) -> T:
    """What ``read`` makes of one provision; whatever it raises is a PluginError.

    It may take long, for libraries are loaded and kernels compiled; then the log says who it is.
    """
    what = (planned.contract, planned.name)
    watch = threading.Timer(PATIENCE, _log.warning, (_SLOW, *what, planned.owner, PATIENCE, *what))
    watch.daemon = True
    watch.start()
    try:
        return read(planned)
    except PluginError:
        raise
    except BaseException as error:
        raise failed(planned, error) from error
    finally:
        watch.cancel()


class _ResolvedDriver(DriverManager[Any]):  # type: ignore[misc]  # checked as Any
    """Loads the one entry point that was resolved; stevedore's own scan would drop its owner."""

    def __init__(self, planned: Planned) -> None:
        group = f"tokenspeed.{planned.contract}"
        self._resolved = EntryPoint(name=planned.name, value=planned.value, group=group)
        super().__init__(group, planned.name)

    def list_entry_points(self) -> list[Any]:
        return [self._resolved]


def load(planned: Planned) -> Any:
    """The object behind a planned entry point. LoadError keeps the cause."""
    try:
        return _ResolvedDriver(planned).driver
    except BaseException as error:
        raise failed(planned, error) from error


def call(planned: Planned) -> Any:
    """What the zero-argument callable behind an entry point returns. LoadError keeps the cause."""
    factory = cast("Callable[[], Any]", load(planned))
    try:
        return factory()
    except BaseException as error:
        raise failed(planned, error) from error


def failed(planned: Planned, error: BaseException, verb: str = "load") -> LoadError:
    """The error that says whose code raised, and what it failed to do.

    sys.exit() in a plugin is its failure, too; what the operator sent is raised again.
    """
    as_failure(error, f"{planned.contract} {planned.name} of {planned.owner}")
    return load_failed(
        error,
        what=f'{planned.contract} "{planned.name}" ({planned.value})',
        entry=planned.value,
        owner=planned.owner,
        distribution=planned.distribution,
        verb=verb,
    )


def broken(planned: Planned, what: str) -> BrokenPromiseError:
    """The error that says who does not keep which promise."""
    return BrokenPromiseError(
        f"{planned.owner} {what}",
        where=f'{planned.contract} "{planned.name}" ({planned.value})',
        fix=complain(planned.distribution),
    )


@dataclass(frozen=True)
class OwnedPlatform:
    """A platform whose errors name its owner and the one thing to do."""

    planned: Planned
    platform: Platform

    @property
    def name(self) -> str:
        return self.platform.name

    @property
    def embedded(self) -> bool:
        return self.platform.embedded

    def probe(self) -> Verdict:
        return self.platform.probe()

    def prepare(self, threads: int | None) -> None:
        """LoadError: it raised."""
        try:
            self.platform.prepare(threads)
        except BaseException as error:
            raise failed(self.planned, error, "prepare this process") from error

    def open(self, index: int = 0) -> Device:
        """LoadError: it raised. BrokenPromiseError: what it returned is no device."""
        try:
            device = self.platform.open(index) if index else self.platform.open()
            capabilities = getattr(device, "capabilities", None)
        except BaseException as error:
            raise failed(self.planned, error, "open its device") from error
        if not isinstance(capabilities, Capabilities):
            raise broken(self.planned, f"opens {device!r}, which is no device with Capabilities")
        return device


def load_platform(plan: PluginPlan) -> OwnedPlatform:
    """The platform of the plan."""
    planned = next(p for p in plan.of("platform") if p.name == plan.platform)
    return OwnedPlatform(planned, call(planned))
