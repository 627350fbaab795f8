# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts bench: measurements that anybody can repeat."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenspeed.cli.options import model_folder

if TYPE_CHECKING:
    from tokenspeed.bench.report import Report

_save = click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the report as JSON."
)
_check = click.option("--check", is_flag=True, help="Exit with 1 when a wanted ratio is missed.")


@click.group()
def bench() -> None:
    """Measure; figures come with the machine, the versions and every sample."""


@bench.command()
@click.argument("folder", callback=model_folder)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--repetitions", type=click.IntRange(min=1), default=7, show_default=True)
@_save
@_check
def cpu(folder: str, threads: int, repetitions: int, save: Path | None, check: bool) -> None:
    """Decode and prefill beside Transformers, and beside the linear layers alone."""
    if importlib.util.find_spec("transformers") is None:
        raise click.ClickException("it compares with Transformers: pip install transformers")
    from tokenspeed.bench.cpu import run

    report = run(folder, threads=threads, repetitions=repetitions, progress=_say)
    _finish(report, save, check)


@bench.command()
@click.argument("folder", callback=model_folder)
@_save
@_check
def gateway(folder: str, save: Path | None, check: bool) -> None:
    """What gateway and front add to the engine's own time. Wants an idle machine."""
    from tokenspeed.bench.gateway import run

    _finish(run(folder, progress=_say), save, check)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _finish(report: Report, save: Path | None, check: bool) -> None:
    from tokenspeed.bench import report as reports

    reports.show(report)
    if save is not None:
        reports.save(report, save)
    if check and not all(row.reached for row in report.rows):
        sys.exit(1)
