# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts plugins: reads metadata and manifests only, so it works with every plugin broken."""

from __future__ import annotations

import click

from tokenspeed.cli.table import print_table
from tokenspeed.plugins.discovery import InstalledPlugin, discover
from tokenspeed.plugins.errors import PluginError, UnknownNameError, did_you_mean
from tokenspeed.plugins.resolve import check_plugins


@click.group()
def plugins() -> None:
    """What is installed, and whether it is sound."""


@plugins.command("list")
def list_() -> None:
    """One line per plugin."""
    found = discover()
    if not found:
        click.echo(
            "no plugin is installed; a model on a CPU needs: "
            "pip install tokenspeed-cpu tokenspeed-models"
        )
        return
    print_table(
        ("plugin", "distribution", "provides", "state"),
        [(p.id, p.owner, _provides(p), _state(p)) for p in found],
    )
    try:
        check_plugins(found)
    except PluginError as error:
        raise click.ClickException(str(error)) from error


@plugins.command()
@click.argument("name")
def show(name: str) -> None:
    """All that the plugin NAME says about itself."""
    found = discover()
    chosen = [p for p in found if name in (p.id, p.distribution)]
    if not chosen:
        raise UnknownNameError(
            f'no plugin "{name}" is installed',
            where="ts plugins show",
            fix=did_you_mean(name, (p.id for p in found)),
        )
    for plugin in chosen:
        _show(plugin)


def _show(plugin: InstalledPlugin) -> None:
    click.echo(f"plugin        {plugin.id}")
    click.echo(f"distribution  {plugin.owner}")
    click.echo(f"manifest      {plugin.manifest or 'not found'}")
    for provision in plugin.provisions:
        click.echo(
            f"provides      {provision.contract} {provision.number} {provision.name}"
            f" = {provision.value}"
        )
        for claim in provision.claims:
            click.echo(f"  claims      {claim}")
    click.echo(f"state         {plugin.error or 'ok'}")


def _provides(plugin: InstalledPlugin) -> str:
    return ", ".join(f"{p.contract} {p.name}" for p in plugin.provisions) or "-"


def _state(plugin: InstalledPlugin) -> str:
    return "ok" if plugin.error is None else "refused"
