# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What is known of the installed plugins without running them, in words and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenspeed.plugins.choose.decision import REFUSED
from tokenspeed.plugins.choose.usable import conflicts
from tokenspeed.plugins.discover.discovery import InstalledPlugin
from tokenspeed.plugins.errors import PluginError


def problem_of(plugin: InstalledPlugin, plugins: Sequence[InstalledPlugin]) -> PluginError | None:
    """What is wrong with a plugin itself, or with it beside the others."""
    if plugin.error is not None:
        return plugin.error
    provisions = [p for other in plugins if other.error is None for p in other.provisions]
    found = (c for c in conflicts(plugins, provisions) if plugin.owner in c.owners)
    return next(found, None)


def state_of(plugin: InstalledPlugin, plugins: Sequence[InstalledPlugin]) -> str:
    """One line."""
    problem = problem_of(plugin, plugins)
    return "ok" if problem is None else f"{REFUSED}: {problem.reason}"


def provides(plugin: InstalledPlugin) -> str:
    """Contracts and names; of a broken plugin, what its entry points offer."""
    offered = [(p.contract, p.name) for p in plugin.provisions] or plugin.offers
    return ", ".join(f"{contract} {name}" for contract, name in offered) or "-"


def plugin_data(plugin: InstalledPlugin, plugins: Sequence[InstalledPlugin]) -> dict[str, Any]:
    """Everything, for JSON."""
    return {
        "id": plugin.id,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "manifest": plugin.manifest,
        "provides": [
            {
                "contract": p.contract,
                "number": p.number,
                "name": p.name,
                "value": p.value,
                "claims": p.claims,
                "devices": p.devices,
                "needs": p.needs,
            }
            for p in plugin.provisions
        ],
        "offers": [{"contract": contract, "name": name} for contract, name in plugin.offers],
        "native": [
            {
                "file": native.library.file,
                "path": native.path,
                "abi": native.library.abi,
                "torch": native.library.torch,
                "cuda": native.library.cuda,
                "cxx": native.library.cxx,
            }
            for native in plugin.native
        ],
        "state": state_of(plugin, plugins),
        "problem": problem_data(problem_of(plugin, plugins)),
    }


def problem_data(problem: PluginError | None) -> dict[str, str] | None:
    """An error's parts, for JSON."""
    if problem is None:
        return None
    return {
        "kind": type(problem).__name__,
        "what": problem.what,
        "where": problem.where,
        "fix": problem.fix,
    }
