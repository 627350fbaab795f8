# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The start-up table: who does what in a launch, why, and why not the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import click

from tokenspeed.cli.table import print_table
from tokenspeed.plugins.choose.decision import Decision
from tokenspeed.plugins.words import counted


def print_compact(rows: Iterable[Decision]) -> None:
    """One line a row."""
    print_table(
        ("role", "chosen", "owner", "why"),
        [(_role(row), row.chosen, row.owner, row.why) for row in rows],
    )


def print_whole(rows: Iterable[Decision]) -> None:
    """Each row with all that were not chosen, and the reasons."""
    for row in rows:
        click.echo(f"{_role(row)}: {row.chosen} ({row.owner}): {row.why}")
        for other in row.runners_up:
            click.echo(f"    not {other.name} ({other.owner}): {other.why}")


def wired_rows(ready: Mapping[str, Any]) -> list[Decision]:
    """What the processes wired once they were ready: a row for each plugin of kernels or hooks."""
    ops: dict[tuple[str, str], list[int]] = {}
    for choice in ready["kernels"]:
        ops.setdefault((choice["kernel"], choice["owner"]), []).append(choice["sites"])
    kernels = [
        Decision(
            "kernels",
            name,
            owner,
            f"{counted(len(sites), 'op')}, called at {counted(sum(sites), 'site')}",
        )
        for (name, owner), sites in ops.items()
    ]
    observers = [
        Decision("observer", each["observer"], each["owner"], counted(each["hooks"], "hook"))
        for each in ready["observers"]
    ]
    return [*kernels, *observers]


def as_data(rows: Iterable[Decision]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(row) for row in rows]


def _role(row: Decision) -> str:
    rows = f" [{row.rows} rows]" if row.rows else ""
    return f"{row.role}{rows}" + (f" x{row.sites}" if row.sites else "")
