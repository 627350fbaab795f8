# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a benchmark says: rows with a ratio first, the machine, the command and the date."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

_PACKAGES = (
    "tokenspeed-core",
    "tokenspeed-cpu",
    "tokenspeed-nvidia",
    "tokenspeed-models",
    "tokenspeed-llguidance",
    "tokenspeed-xgrammar",
    "torch",
    "triton",
    "transformers",
    "smg",
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, and mostly what it is compared with.

    Attributes:
        what: what was measured.
        ours, theirs: medians in ``unit``; theirs None: there is nothing to compare with.
        versus: what ``theirs`` is of.
        ratio: of the two, so that more is better for us.
        bar: the ratio that we want to reach; None: only reported.
    """

    what: str
    unit: str
    ours: float
    versus: str = ""
    theirs: float | None = None
    ratio: float | None = None
    bar: float | None = None

    @property
    def reached(self) -> bool:
        return self.bar is None or (self.ratio is not None and self.ratio >= self.bar)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it ran.

    Attributes:
        load: of the last minute when the run ended, in busy threads; a benchmark alone stays below
            the number of cores.
    """

    cpu: str
    cores: int
    load: float
    kernel: str
    python: str


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second at one concurrency, as one user sees them and of the whole device."""

    concurrency: int
    per_user: float
    per_device: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run.

    Attributes:
        samples: every single measurement behind the medians, by name, in run order.
        notes: facts that belong to the figures.
        points: of a plot of what a user gets against what the device does.
    """

    command: str
    date: str
    model: str
    machine: Machine
    versions: dict[str, str]
    rows: list[Row]
    samples: dict[str, list[float]]
    notes: dict[str, str]
    points: list[Point] = []


def new_report(
    command: str,
    model: str,
    rows: Sequence[Row],
    samples: dict[str, list[float]],
    notes: dict[str, str],
    points: Sequence[Point] = (),
) -> Report:
    """A report of now and here."""
    return Report(
        command=command,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        model=Path(model).name,
        machine=this_machine(),
        versions=installed_versions(),
        rows=list(rows),
        samples={name: [float(f"{x:.6g}") for x in taken] for name, taken in samples.items()},
        notes=notes,
        points=list(points),
    )


def this_machine() -> Machine:
    """The CPU's name and the cores that this process may use."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return Machine(
        cpu=names[0] if names else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        load=round(os.getloadavg()[0], 2),
        kernel=platform.release(),
        python=platform.python_version(),
    )


def installed_versions() -> dict[str, str]:
    """Of all that the figures depend on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def compare_rates(
    what: str,
    *,
    work: float,
    unit: str,
    ours_s: Sequence[float],
    theirs_s: Sequence[float],
    versus: str,
    bar: float | None = None,
) -> Row:
    """Two rates from seconds for the same ``work``, medians of each; more is better."""
    ours, theirs = work / statistics.median(ours_s), work / statistics.median(theirs_s)
    return Row(
        what=what,
        unit=unit,
        ours=round(ours, 3),
        versus=versus,
        theirs=round(theirs, 3),
        ratio=round(ours / theirs, 4),
        bar=bar,
    )


def per_second(rate: float, unit: str) -> str:
    """A rate in thousands of millions, or in millions of millions from one of those on.

    Args:
        rate: bytes, or operations, a second.
        unit: of one: "B" or "FLOP".
    """
    size, prefix = (1e12, "T") if rate >= 1e12 else (1e9, "G")
    return f"{rate / size:.4g} {prefix}{unit}/s"


def compare_times(
    what: str,
    *,
    unit: str,
    ours_s: Sequence[float],
    theirs_s: Sequence[float],
    versus: str,
    bar: float | None = None,
) -> Row:
    """Medians of two times in milliseconds; less is better."""
    ours, theirs = statistics.median(ours_s) * 1e3, statistics.median(theirs_s) * 1e3
    return Row(
        what=what,
        unit=unit,
        ours=round(ours, 3),
        versus=versus,
        theirs=round(theirs, 3),
        ratio=round(theirs / ours, 4),
        bar=bar,
    )


def save(report: Report, path: Path) -> None:
    """Write it as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def show(report: Report) -> None:
    """Print it, the ratio first."""
    machine = report.machine
    table = Table(title=f"{report.command}: {report.model}, {machine.cpu}, {machine.cores} cores")
    for name in ("ratio", "wanted", "what", "ours", "theirs", "of", "unit"):
        table.add_column(name, justify="right" if name in ("ratio", "ours", "theirs") else "left")
    for row in report.rows:
        mark = "" if row.bar is None else f">= {row.bar:g}{'' if row.reached else '  MISSED'}"
        theirs = "" if row.theirs is None else f"{row.theirs:.4g}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(ratio, mark, row.what, f"{row.ours:.4g}", theirs, row.versus, row.unit)
    console = Console()
    console.print(table)
    for name, text in report.notes.items():
        console.print(f"{name}: {text}")
