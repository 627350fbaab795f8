# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The plugin host: discover -> probe -> resolve; ``activate`` loads what the plan names.

resolution = resolve_installed()          # PluginError says what, where, what to do
platform = load_platform(resolution.plan)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tokenspeed.plugins.choose.lists import Lists, gather
from tokenspeed.plugins.choose.platforms import Probed
from tokenspeed.plugins.choose.resolve import Choices, Resolution, resolve
from tokenspeed.plugins.choose.usable import sort_out
from tokenspeed.plugins.discover.discovery import InstalledPlugin, discover
from tokenspeed.plugins.errors import PlanMismatchError
from tokenspeed.plugins.load.activate import load_platform
from tokenspeed.plugins.load.probe import probe_platform
from tokenspeed.plugins.load.probe_apart import probe_apart
from tokenspeed.plugins.plan import PluginPlan

AT_ONCE = 4
"""Probes beside each other: most of their time is the start of an interpreter."""

__all__ = ["discover", "load_platform", "probe", "prove", "resolve_installed"]


def resolve_installed(
    platform: str | None = None,
    pins: Mapping[str, str] | None = None,
    *,
    lists: Lists | None = None,
    architectures: Sequence[str] | None = None,
) -> Resolution:
    """The plan of what is installed here, for an operator's choices.

    Args:
        lists: what may be used; None takes the environment's.
        architectures: of the model that will run, whose plugin must then be there.
    """
    plugins = discover()
    wanted = None if architectures is None else tuple(architectures)
    choices = Choices(platform, pins or {}, gather() if lists is None else lists, wanted)
    return resolve(plugins, probe(plugins, choices), choices)


def probe(
    plugins: Sequence[InstalledPlugin], choices: Choices, *, apart: bool = True
) -> tuple[Probed, ...]:
    """Ask the named platform, or all, whether they can run here. Their code is light: no torch.

    Args:
        apart: in processes of their own, for one may crash; False for one that answered before.
    """
    usable = sort_out(plugins, choices.lists).provisions
    asked = [p for p in usable if p.contract == "platform" and choices.platform in (None, p.name)]
    if not apart:
        return tuple(map(probe_platform, asked))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return tuple(pool.map(probe_apart, asked))


def prove(plan: PluginPlan) -> None:
    """Check in a child that it resolves as its parent did. PlanMismatchError says what differs.

    The child takes its parent's platform and lists as given, and asks only that platform.
    """
    plugins = discover()
    mine = PluginPlan.make(plan.platform, sort_out(plugins, plan.lists).provisions, plan.lists)
    if mine.hash != plan.hash:
        differences = "\n  difference: ".join(mine.differences(plan))
        raise PlanMismatchError(
            f"this process has plugin plan {mine.hash}, its parent {plan.hash}"
            f"\n  difference: {differences}",
            where=f"child process of {sys.executable}",
            fix="give parent and child the same environment (PYTHONPATH, virtual environment)",
        )
    choices = Choices(plan.platform, lists=plan.lists)
    probes = probe(plugins, choices, apart=False)
    resolve(plugins, probes, choices)  # its platform accepts here, too
