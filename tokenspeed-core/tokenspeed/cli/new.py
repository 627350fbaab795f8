# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts plugins new: the project of a plugin, complete, to start from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from tokenspeed_sdk.templates import Names, TemplateError, write


@click.group()
def new() -> None:
    """Write the project of a new plugin."""


def _command(kind: str, help: str) -> Callable[..., None]:
    @new.command(kind, help=help)
    @click.argument("name")
    @click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Folder of the project, new or empty; by default NAME.",
    )
    def command(name: str, out: Path | None) -> None:
        try:
            folder = Path(Names.derive(name).name) if out is None else out
            written = write(kind, name, folder)
        except (TemplateError, OSError) as error:
            raise click.ClickException(str(error)) from error
        for path in written:
            click.echo(folder / path)
        click.echo(f"next: read {folder / 'README.md'}")

    return command


_command("kernel", "A wheel with a kernel for one op, rms_norm@1, named NAME.")
_command("model", "A wheel with a model family, named after NAME.")
_command("observer", "A wheel with an observer, which logs finished requests, named NAME.")
