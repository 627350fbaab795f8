# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Activate: load the objects that a plan names. The first place where a plugin's code runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from importlib_metadata import EntryPoint
from stevedore.driver import DriverManager
from tokenspeed_sdk.contracts.platform import Platform

from tokenspeed.plugins.errors import load_failed
from tokenspeed.plugins.plan import Planned, PluginPlan


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
    except Exception as error:
        raise failed(planned, error) from error


def call(planned: Planned) -> Any:
    """What the zero-argument callable behind an entry point returns. LoadError keeps the cause."""
    factory = cast("Callable[[], Any]", load(planned))
    try:
        return factory()
    except Exception as error:
        raise failed(planned, error) from error


def failed(planned: Planned, error: Exception) -> Exception:
    """The error that says whose code raised."""
    return load_failed(
        error,
        what=f'{planned.contract} "{planned.name}" ({planned.value})',
        owner=planned.owner,
        distribution=planned.distribution,
    )


def load_platform(plan: PluginPlan) -> Platform:
    """The platform of the plan."""
    planned = next(p for p in plan.of("platform") if p.name == plan.platform)
    return cast("Platform", call(planned))
