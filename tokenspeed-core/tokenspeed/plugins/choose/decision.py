# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A choice with its reasons: one row of the start-up table."""

from __future__ import annotations

from dataclasses import dataclass

REFUSED = "refused"
LEFT_OUT = "left out"


@dataclass(frozen=True)
class RunnerUp:
    """Who was not chosen, and why."""

    name: str
    owner: str
    why: str


@dataclass(frozen=True)
class Decision:
    """One choice with its reasons.

    Attributes:
        role: what was chosen for: "platform", "model", the name of an op, or the plugin that is
            refused or left out.
        chosen: the name, or REFUSED or LEFT_OUT.
        sites: of an op, the call sites that it stands for; else 0.
        rows: of an op, numbers of rows that it holds for, such as "2-8"; "" for any.
    """

    role: str
    chosen: str
    owner: str
    why: str
    runners_up: tuple[RunnerUp, ...] = ()
    sites: int = 0
    rows: str = ""
