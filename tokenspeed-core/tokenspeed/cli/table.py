# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Aligned columns of text."""

from __future__ import annotations

from collections.abc import Sequence

import click


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a header and rows; the last column is not padded."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())
