# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts models: which architectures the installed plugins serve. Reads manifests only."""

from __future__ import annotations

import click

from tokenspeed.cli.table import print_table
from tokenspeed.plugins.discovery import discover
from tokenspeed.plugins.resolve import check_plugins


@click.group()
def models() -> None:
    """What the installed plugins can run."""


@models.command("list")
def list_() -> None:
    """One line per architecture."""
    provisions = [p for p in check_plugins(discover()) if p.contract == "model"]
    if not provisions:
        click.echo("no model is installed: pip install tokenspeed-models")
        return
    rows = [(claim, p.name, p.owner) for p in provisions for claim in p.claims]
    print_table(("architecture", "family", "distribution"), sorted(rows))
