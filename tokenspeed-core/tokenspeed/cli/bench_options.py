# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What all commands of ts bench share: options, and what happens with a report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tokenspeed.bench.report import Report

COUNT = click.IntRange(min=1)

save_option = click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the report as JSON."
)


def _drawable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Callback: said before anything is measured."""
    from tokenspeed.bench.plot import NEEDED, can_draw

    if value is not None and not can_draw():
        raise click.BadParameter(f"it draws with {NEEDED}, which is missing: pip install {NEEDED}")
    return value


plot_option = click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_drawable,
    help="Draw tokens/s of a user against those of the device, as PNG; needs matplotlib.",
)
check_option = click.option(
    "--check", is_flag=True, help="Exit with 1 when a wanted ratio is missed."
)


def say(text: str) -> None:
    """Progress, beside the report."""
    click.echo(text, err=True)


def finish(report: Report, save: Path | None, check: bool, plot: Path | None = None) -> None:
    """Show, save, draw and check it."""
    from tokenspeed.bench import report as reports

    reports.show(report)
    if save is not None:
        reports.save(report, save)
    if plot is not None:
        from tokenspeed.bench.plot import draw

        draw(report, plot)
    if check and not all(row.reached for row in report.rows):
        sys.exit(1)
