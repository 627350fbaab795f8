# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts plugins: works with every plugin broken, for it runs none of them.

list and show read metadata and manifests; doctor loads plugins in processes of their own.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from tokenspeed.cli.lists import list_options
from tokenspeed.cli.table import print_table
from tokenspeed.plugins.discover.discovery import InstalledPlugin, discover
from tokenspeed.plugins.doctor.report import plugin_data, problem_of, provides, state_of
from tokenspeed.plugins.errors import UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from tokenspeed.plugins.doctor.doctor import Examination, Load

_json = click.option("--json", "as_json", is_flag=True, help="For programs, and for issues.")


class _Plugins(click.Group):
    """``new`` is imported when it is run: it brings the templates."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "new"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "new":
            from tokenspeed.cli.new import new

            return new
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Plugins)
def plugins() -> None:
    """What is installed, and whether it is sound."""


@plugins.command("list")
@_json
def list_(as_json: bool) -> None:
    """One line per plugin; what is wrong with one does not keep the others from view."""
    found = discover()
    if as_json:
        _print_json([plugin_data(plugin, found) for plugin in found])
    elif not found:
        click.echo(
            "no plugin is installed; a model on a CPU needs: "
            "pip install tokenspeed-cpu tokenspeed-models"
        )
    else:
        print_table(
            ("plugin", "distribution", "provides", "state"),
            [(p.id, p.owner, provides(p), state_of(p, found)) for p in found],
        )


@plugins.command()
@click.argument("name")
@_json
def show(name: str, as_json: bool) -> None:
    """All that the plugin NAME says about itself, or the one that provides NAME."""
    found = discover()
    chosen = [p for p in found if name in (p.id, p.distribution, *_names(p))]
    if not chosen:
        raise UnknownNameError(
            f'no plugin "{name}" is installed',
            where="ts plugins show",
            fix=did_you_mean(name, (n for p in found for n in (p.id, *_names(p)))),
        )
    if as_json:
        _print_json([plugin_data(plugin, found) for plugin in chosen])
        return
    for plugin in chosen:
        _show(plugin, found)


@plugins.command()
@list_options
@_json
def doctor(allow: tuple[str, ...] | None, deny: tuple[str, ...], as_json: bool) -> None:
    """Examine what is installed: load each plugin in a process of its own. 1 if one is ill."""
    from tokenspeed.plugins.choose.lists import gather
    from tokenspeed.plugins.choose.usable import known_names
    from tokenspeed.plugins.doctor.doctor import examine

    found = discover()
    lists = gather(allow, deny)
    lists.check_names(known_names(found))
    click.echo("loading each part in a process of its own: seconds, more after a start", err=True)
    started = time.monotonic()
    examination = examine(found, lists, lambda load: _print_load(load, err=as_json))
    if as_json:
        _print_json(_examination_data(examination, found))
    else:
        _print_examination(examination, time.monotonic() - started)
    if examination.findings:
        sys.exit(1)


def _names(plugin: InstalledPlugin) -> list[str]:
    """Of what it provides, as allow and deny lists name it."""
    return [name for _, name in plugin.offers]


def _show(plugin: InstalledPlugin, found: tuple[InstalledPlugin, ...]) -> None:
    click.echo(f"plugin        {plugin.id}")
    click.echo(f"distribution  {plugin.owner}")
    click.echo(f"manifest      {plugin.manifest or 'not found'}")
    for provision in plugin.provisions:
        click.echo(
            f"provides      {provision.contract} {provision.number} {provision.name}"
            f" = {provision.value}"
        )
        for word, values in (
            ("devices", provision.devices),
            ("needs", provision.needs),
            ("claims", provision.claims),
        ):
            for value in values:
                click.echo(f"  {word:12}{value}")
    if not plugin.provisions:
        click.echo(f"offers        {provides(plugin)}")
    for native in plugin.native:
        click.echo(f"native        {native.path or native.library.file}")
    click.echo(f"state         {problem_of(plugin, found) or 'ok'}")


def _print_load(load: Load, *, err: bool) -> None:
    """``err``: to standard error, where only progress goes: the answer is JSON."""
    p, tried = load.provision, load.tried
    said = tried.said or "FAILED, see below"
    click.echo(f"{p.contract} {p.name} ({p.owner}): {said}  [{tried.seconds:.2f} s]", err=err)


def _print_examination(examination: Examination, seconds: float) -> None:
    if examination.loads:
        click.echo(
            f"[{seconds:.1f} s in all: each was loaded in a process of its own, whose start and "
            "import of torch are not in the times above]"
        )
    for finding in examination.findings:
        click.echo(
            f"{finding.check}: {finding.owner}: {finding.what}; where: {finding.where}; "
            f"to do: {finding.fix}"
        )
    count = len(examination.findings)
    click.echo("all is well" if not count else f"{count} thing{'s' * (count > 1)} to put right")


def _examination_data(
    examination: Examination, found: tuple[InstalledPlugin, ...]
) -> dict[str, Any]:
    from dataclasses import asdict

    from tokenspeed.plugins.doctor.about import environment

    return {
        "environment": environment(),
        "plugins": [plugin_data(plugin, found) for plugin in found],
        "loads": [
            {
                "contract": load.provision.contract,
                "name": load.provision.name,
                "owner": load.provision.owner,
                "seconds": load.tried.seconds,
                "said": load.tried.said,
                "failed": load.tried.what,
            }
            for load in examination.loads
        ],
        "findings": [asdict(finding) for finding in examination.findings],
    }


def _print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=1))
