# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a user gets against what the device does, as a PNG."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.bench.report import Report

NEEDED = "matplotlib"


def can_draw() -> bool:
    """Whether the library that draws is installed."""
    return importlib.util.find_spec(NEEDED) is not None


def draw(report: Report, path: Path) -> None:
    """The report's points, each with its concurrency beside it.

    ValueError: the report has none.
    """
    if not report.points:
        raise ValueError(f"{report.command} measures nothing that --plot draws")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    points = sorted(report.points, key=lambda point: point.concurrency)
    axes.plot([p.per_user for p in points], [p.per_device for p in points], marker="o")
    for point in points:
        place = (point.per_user, point.per_device)
        axes.annotate(str(point.concurrency), place, xytext=(5, 5), textcoords="offset points")
    axes.set_xlabel("tokens/s of a user")
    axes.set_ylabel("tokens/s of the device")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{report.model}: {report.command}, concurrency beside the points")
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, format="png")
