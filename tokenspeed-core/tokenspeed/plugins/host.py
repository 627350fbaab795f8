# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The plugin host: discover -> probe -> resolve; ``activate`` loads what the plan names.

resolution = resolve_installed(platform=None)     # PluginError says what, where, what to do
platform = load_platform(resolution.plan)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from tokenspeed_sdk.contracts.probe import Accept, Decline

from tokenspeed.plugins.activate import call, failed, load_platform
from tokenspeed.plugins.discovery import InstalledPlugin, discover
from tokenspeed.plugins.errors import LoadError, PlanMismatchError
from tokenspeed.plugins.plan import Planned, PluginPlan
from tokenspeed.plugins.resolve import Choices, Probed, Resolution, check_plugins, resolve

__all__ = ["discover", "load_platform", "probe", "prove", "resolve_installed"]


def resolve_installed(
    platform: str | None = None, pins: Mapping[str, str] | None = None
) -> Resolution:
    """The plan of what is installed here, for an operator's choices."""
    plugins = discover()
    return resolve(plugins, probe(plugins, platform), Choices(platform, pins or {}))


def probe(plugins: Sequence[InstalledPlugin], named: str | None) -> tuple[Probed, ...]:
    """Ask the named platform, or all, whether they can run here. Their code is light: no torch."""
    platforms = [p for p in check_plugins(plugins) if p.contract == "platform"]
    return tuple(_probe_one(p) for p in platforms if named in (None, p.name))


def prove(plan: PluginPlan, platform: str | None) -> None:
    """Check in a child that it resolves as its parent did. PlanMismatchError says what differs.

    Args:
        platform: the operator's choice, from which the parent resolved the plan.
    """
    mine = PluginPlan.make(plan.platform, check_plugins(discover()))
    if mine.hash == plan.hash:  # the same is installed; does it lead to the same choice?
        mine = resolve_installed(platform).plan
    if mine.hash != plan.hash:
        differences = "\n  difference: ".join(mine.differences(plan))
        raise PlanMismatchError(
            f"this process has plugin plan {mine.hash}, its parent {plan.hash}"
            f"\n  difference: {differences}",
            where=f"child process of {sys.executable}",
            fix="give parent and child the same environment (PYTHONPATH, virtual environment)",
        )


def _probe_one(planned: Planned) -> Probed:
    outcome: Accept | Decline | LoadError
    embedded = False
    try:
        platform = call(planned)
        try:
            embedded, outcome = platform.embedded, platform.probe()
            if platform.name != planned.name or not isinstance(outcome, Accept | Decline):
                raise TypeError(f"it calls itself {platform.name!r} and answers {outcome!r}")
        except Exception as error:
            raise failed(planned, error) from error
    except LoadError as problem:
        outcome, embedded = problem, False
    return Probed(planned, embedded, outcome)
