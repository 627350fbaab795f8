# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The drafter of a launch: the one that an operator names, or none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tokenspeed.plugins.choose.decision import Decision
from tokenspeed.plugins.choose.resolve import Resolution
from tokenspeed.plugins.errors import UnknownNameError
from tokenspeed.version import engine_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.plugins.plan import Planned

SUFFIX = "suffix"
"""The engine's own."""


def with_drafter(resolution: Resolution, name: str | None) -> Resolution:
    """The resolution with a row for the drafter of that name.

    UnknownNameError: the engine has none of that name, and no plugin either.
    """
    if name is None:
        return resolution
    planned = find_drafter(name, resolution.plan.of("drafter"))
    owner = f"tokenspeed-core {engine_version()}" if planned is None else planned.owner
    row = Decision("drafter", name, owner, f"--drafter {name}")
    return replace(resolution, others=(row, *resolution.others))


def find_drafter(name: str, installed: Sequence[Planned]) -> Planned | None:
    """The plugin's drafter of that name, which goes before the engine's own; None: that one.

    UnknownNameError: there is none.
    """
    found = {planned.name: planned for planned in installed}
    if name not in {SUFFIX, *found}:
        raise UnknownNameError(
            f'no drafter "{name}" is installed',
            where=f"--drafter {name}",
            fix=f"give one of {', '.join(sorted({SUFFIX, *found}))}, or leave it out",
        )
    return found.get(name)
