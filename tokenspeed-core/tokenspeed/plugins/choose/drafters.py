# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The drafter of a launch: the one that an operator names, or none."""

from __future__ import annotations

from dataclasses import replace

from tokenspeed.plugins.choose.decision import Decision
from tokenspeed.plugins.choose.resolve import Resolution
from tokenspeed.plugins.errors import UnknownNameError
from tokenspeed.version import engine_version

SUFFIX = "suffix"
"""The engine's own."""


def with_drafter(resolution: Resolution, name: str | None) -> Resolution:
    """The resolution with a row for the drafter of that name.

    UnknownNameError: the engine has none of that name, and no plugin either.
    """
    if name is None:
        return resolution
    owners = {SUFFIX: f"tokenspeed-core {engine_version()}"}
    owners |= {p.name: p.owner for p in resolution.plan.of("drafter")}  # whose the engine prefers
    if name not in owners:
        raise UnknownNameError(
            f'no drafter "{name}" is installed',
            where=f"--drafter {name}",
            fix=f"give one of {', '.join(sorted(owners))}, or leave it out",
        )
    row = Decision("drafter", name, owners[name], f"--drafter {name}")
    return replace(resolution, others=(row, *resolution.others))
