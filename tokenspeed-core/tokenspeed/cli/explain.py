# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts explain: what a launch would choose, without starting it."""

from __future__ import annotations

import json
from typing import Any

import click

from tokenspeed.cli.environment import check_environment
from tokenspeed.cli.options import engine_config, engine_options, model_folder
from tokenspeed.cli.start_table import as_data, print_whole
from tokenspeed.cli.without_weights import ask_everything


@click.group()
def explain() -> None:
    """What a launch would choose, and why."""


@explain.command()
@click.argument("folder", callback=model_folder, metavar="FOLDER")
@engine_options
@click.option("--json", "as_json", is_flag=True, help="For programs, and for issues.")
def start(folder: str, as_json: bool, **values: Any) -> None:
    """The start-up table of 'ts serve FOLDER' with the same options. Reads no weights."""
    check_environment()
    engine = engine_config(folder, values)
    found = ask_everything(engine)
    if as_json:
        data = {
            "plan": found.resolution.plan.hash,
            "table": as_data(found.table),
            "warnings": found.resolution.warnings,
        }
        click.echo(json.dumps(data, indent=1))
        return
    print_whole(found.table)
    for warning in found.resolution.warnings:
        click.echo(f"warning: {warning}", err=True)
