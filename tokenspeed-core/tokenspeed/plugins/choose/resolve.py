# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Resolve: from what is installed, what was probed and what was asked to one plan, with reasons.

Pure: the same arguments give the same result or the same error, whatever the machine.

A broken plugin ends a launch only if the launch stands on it: it is named, pinned or allowed by
name, holds the model's architecture, belongs to the wheel of the chosen platform, or may be the
only platform for this machine. Otherwise it is a warning and a row of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tokenspeed.plugins.choose.architecture import find_holder
from tokenspeed.plugins.choose.decision import LEFT_OUT, REFUSED, Decision
from tokenspeed.plugins.choose.lists import Lists
from tokenspeed.plugins.choose.pins import check_pins
from tokenspeed.plugins.choose.platforms import Probed, choose_platform
from tokenspeed.plugins.choose.usable import (
    LeftOut,
    Refused,
    Usable,
    conflicts,
    known_names,
    refuse_conflicts,
    sort_out,
)
from tokenspeed.plugins.discover.discovery import InstalledPlugin
from tokenspeed.plugins.errors import DuplicateClaimError, LoadError
from tokenspeed.plugins.plan import Planned, PluginPlan, fitting


@dataclass(frozen=True)
class Choices:
    """What the operator said.

    Attributes:
        pins: op -> kernel name.
        architectures: those of the model's config.json; None when no model is asked for.
    """

    platform: str | None = None
    pins: Mapping[str, str] = field(default_factory=dict)
    lists: Lists = field(default_factory=Lists)
    architectures: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Resolution:
    """The plan, why it is so, and what the operator should see.

    Attributes:
        model: the plugin for the architecture, when one was asked for.
        others: a row for every observer, and for all that is refused or left out.
        warnings: what is broken and does not matter to this launch, whole.
        refused: the broken plugins that the warnings are about.
    """

    plan: PluginPlan
    platform: Decision
    model: Decision | None
    others: tuple[Decision, ...]
    warnings: tuple[str, ...]
    refused: tuple[Refused, ...] = ()

    @property
    def chosen(self) -> tuple[Decision, ...]:
        """The platform, and the model's plugin if one was asked for."""
        return (self.platform,) if self.model is None else (self.platform, self.model)

    @property
    def table(self) -> tuple[Decision, ...]:
        """All rows, but those of the kernels: these are chosen where they are called."""
        return (*self.chosen, *self.others)


def resolve(
    plugins: Sequence[InstalledPlugin], probes: Sequence[Probed], choices: Choices
) -> Resolution:
    """Choose. ``probes`` holds the named platform, or all of them if none is named."""
    choices.lists.check_names(known_names(plugins))
    usable = sort_out(plugins, choices.lists)
    _refuse_named(usable, choices.lists)
    platform, decision = choose_platform(usable, probes, choices.platform)
    for refused in usable.refused:
        if refused.plugin.distribution == platform.distribution:
            raise refused.error.with_more(f"it is part of the wheel of platform {platform.name}")
    kept = fitting(platform.name, usable.provisions)
    refuse_conflicts(plugins, kept)
    elsewhere = conflicts(plugins, usable.provisions)
    left_out = (*usable.left_out, *_for_other_devices(usable.provisions, kept, platform))
    check_pins(kept, choices.pins, usable.refused, left_out)
    return Resolution(
        plan=PluginPlan.make(platform.name, usable.provisions, choices.lists),
        platform=decision,
        model=_choose_model(usable, choices.architectures),
        others=(*_rows(kept, usable.refused, left_out), *map(_row_of_conflict, elsewhere)),
        warnings=(
            *(str(p.outcome) for p in sorted_probes(probes) if isinstance(p.outcome, LoadError)),
            *(str(refused.error) for refused in usable.refused),
            *map(str, elsewhere),
        ),
        refused=usable.refused,
    )


def sorted_probes(probes: Sequence[Probed]) -> list[Probed]:
    return sorted(probes, key=lambda probe: probe.platform)


def _refuse_named(usable: Usable, lists: Lists) -> None:
    """Whoever stands in an allow list by name is asked for."""
    for refused in usable.refused:
        for contract, name in refused.offers:
            if lists.names(contract, name, refused.plugin.id):
                raise refused.error.with_more(f"it is asked for: --allow {contract}={name}")


def _for_other_devices(
    provisions: Sequence[Planned], kept: Sequence[Planned], platform: Planned
) -> list[LeftOut]:
    return [
        LeftOut(p, f"for {', '.join(p.devices)}; platform {platform.name} has "
                   f"{', '.join(platform.devices)}")
        for p in provisions
        if p not in kept
    ]  # fmt: skip


def _choose_model(usable: Usable, architectures: Sequence[str] | None) -> Decision | None:
    if architectures is None:
        return None
    found, holder = find_holder(usable.provisions, architectures, usable.refused, usable.left_out)
    return Decision("model", holder.name, holder.owner, f"claims architecture {found}")


def _rows(
    kept: Sequence[Planned], refused: Sequence[Refused], left_out: Sequence[LeftOut]
) -> tuple[Decision, ...]:
    observers = [
        Decision("observer", p.name, p.owner, "installed; observers observe unless denied")
        for p in kept
        if p.contract == "observer"
    ]
    grammars = [
        Decision("grammar", p.name, p.owner, "installed; each constraint has its own choice")
        for p in kept
        if p.contract == "grammar"
    ]
    broken = [
        Decision(f"plugin {r.plugin.id}", REFUSED, r.plugin.owner, r.error.reason) for r in refused
    ]
    absent = [
        Decision(f"{left.provision.contract} {left.provision.name}", LEFT_OUT,
                 left.provision.owner, left.why)
        for left in left_out
    ]  # fmt: skip
    return (*observers, *grammars, *broken, *absent)


def _row_of_conflict(conflict: DuplicateClaimError) -> Decision:
    """Of one among kernels of which at most one is for the platform's devices."""
    return Decision("conflict", LEFT_OUT, " and ".join(conflict.owners), conflict.reason)
