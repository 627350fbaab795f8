# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A stranger's wheel taken away: nothing of it is left, and who still names it is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from .checkpoints import Checkpoint
from .layers import ts
from .projects import OWNERS, PROJECTS, kernels


def others(strangers: dict[str, Path], removed: str) -> list[Path]:
    """The folders of all wheels but one."""
    return [folder for name, folder in strangers.items() if name != removed]


@pytest.mark.rule("R2")
@pytest.mark.parametrize("removed", PROJECTS)
def test_it_is_not_listed(strangers: dict[str, Path], removed: str) -> None:
    done = ts("plugins", "list", layers=others(strangers, removed))
    assert done.returncode == 0, done.stderr
    listed = {name for name, owner in OWNERS.items() if owner in done.stdout}
    assert listed == set(PROJECTS) - {removed}


NAMED = {
    **{
        project: (("--pin", f"{op}={name}"), f'op {op} has no kernel "{name}"', f"pin {op}={name}")
        for op, (name, project) in kernels().items()
    },
    "observer": (
        ("--allow", "observer=acme-journal"),
        'no installed plugin provides observer "acme-journal"',
        "--allow observer=acme-journal",
    ),
}
"""Project -> options that name what it provides; once it is removed, what is said, and where."""


@pytest.mark.rule("R10", "R13")
@pytest.mark.parametrize("removed", NAMED)
def test_who_names_it_is_refused(
    strangers: dict[str, Path], juniper_checkpoint: Checkpoint, removed: str
) -> None:
    options, message, where = NAMED[removed]
    folder, layers = str(juniper_checkpoint.folder), others(strangers, removed)
    done = ts("serve", folder, *options, layers=layers)  # without: see test_strangers.py
    assert done.returncode == 1, done.stdout + done.stderr
    assert message in done.stderr
    assert f"where: {where}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.rule("R6")
def test_without_the_model_its_architecture_is_named(
    strangers: dict[str, Path], juniper_checkpoint: Checkpoint
) -> None:
    done = ts("serve", str(juniper_checkpoint.folder), layers=others(strangers, "model"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no installed distribution provides a model for architecture Juniper" in done.stderr
    assert "config.json" in done.stderr
    assert "Traceback" not in done.stderr
