# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The drafter of a launch: the one that an operator names, or none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed.plugins.choose.decision import Decision
from tokenspeed.plugins.choose.resolve import Resolution
from tokenspeed.plugins.errors import DrafterModelError, UnknownNameError
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


def check_model(name: str, folder: str | None, *, has_model: bool) -> None:
    """DrafterModelError: a folder is given to a drafter that has no model, or none to one that has,
    or there is no model in it."""
    if not has_model and folder is not None:
        raise DrafterModelError(
            f"drafter {name} has no model",
            where=f"--drafter-model {folder}",
            fix="leave it out, or name a drafter that guesses with a model",
        )
    if has_model and folder is None:
        raise DrafterModelError(
            f"drafter {name} guesses with a model, and none is given",
            where=f"--drafter {name}",
            fix="give the model's folder with --drafter-model",
        )
    if folder is not None and not Path(folder, "config.json").is_file():
        raise DrafterModelError(
            f"{Path(folder, 'config.json')} is missing",
            where=f"--drafter-model {folder}",
            fix="give the folder of the drafter's model, with its config.json and weights",
        )
