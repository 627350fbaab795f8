# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts models: which architectures the installed plugins serve. Reads manifests only."""

from __future__ import annotations

import click

from tokenspeed.cli.lists import list_options
from tokenspeed.cli.table import print_table
from tokenspeed.plugins.choose.lists import gather
from tokenspeed.plugins.choose.usable import known_names, sort_out
from tokenspeed.plugins.discover.discovery import discover


@click.group()
def models() -> None:
    """What the installed plugins can run."""


@models.command("list")
@list_options
def list_(allow: tuple[str, ...] | None, deny: tuple[str, ...]) -> None:
    """One line per architecture."""
    found = discover()
    lists = gather(allow, deny)
    lists.check_names(known_names(found))
    usable = sort_out(found, lists)
    provisions = [p for p in usable.provisions if p.contract == "model"]
    rows = [(claim, p.name, p.owner) for p in provisions for claim in p.claims]
    if rows:
        print_table(("architecture", "family", "distribution"), sorted(rows))
    for refused in usable.refused:
        if refused.offers_any("model"):
            click.echo(f"warning: {refused.error}", err=True)
    if not rows:
        denied = any(left.provision.contract == "model" for left in usable.left_out)
        click.echo(
            "the lists leave no model"
            if denied
            else "no model is installed: pip install tokenspeed-models"
        )
