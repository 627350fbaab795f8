# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What came out: the figures as JSON, as a table, and as a plot."""

from __future__ import annotations

import datetime
import statistics
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from suite import RATIOS, SUITE
from tokenspeed.bench.report import Machine, this_machine

WHEEL = "tokenspeed-scheduler"
Samples = dict[str, dict[str, list[float]]]
"""Microseconds of each repetition, by workload and side."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One workload. ``ratio`` is the wheel's time over ours."""

    ours_us: float
    wheel_us: float
    ratio: float
    target_us: float | None
    reached: bool


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """How many times slower one workload is than another, on each side."""

    ours: float
    wheel: float
    target: float
    reached: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run; times are CPU time of the calling thread, medians of the samples."""

    command: str
    date: str
    machine: Machine
    versions: dict[str, str]
    work: dict[str, Work]
    growth: dict[str, Growth]
    samples: Samples


def new_report(command: str, samples: Samples) -> Report:
    """A report of now and here."""
    medians = {
        name: {side: statistics.median(taken) for side, taken in sides.items()}
        for name, sides in samples.items()
    }
    return Report(
        command=command,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=this_machine(),
        versions={name: version(name) for name in ("tokenspeed-core", WHEEL, "numpy")},
        work={name: _work(name, **sides) for name, sides in medians.items()},
        growth=_growth(samples),
        samples={
            name: {side: [round(x, 3) for x in taken] for side, taken in sides.items()}
            for name, sides in samples.items()
        },
    )


def _work(name: str, ours: float, wheel: float) -> Work:
    target = SUITE[name].target_us
    return Work(
        ours_us=round(ours, 3),
        wheel_us=round(wheel, 3),
        ratio=round(wheel / ours, 2),
        target_us=target,
        reached=target is None or ours <= target,
    )


def _growth(samples: Samples) -> dict[str, Growth]:
    """Medians of the ratios within each repetition: what slows the machine slows both."""
    found = {}
    for ratio in RATIOS:
        if ratio.slow in samples and ratio.base in samples:
            growth = {
                side: statistics.median(
                    slow / base for slow, base in zip(taken, samples[ratio.base][side], strict=True)
                )
                for side, taken in samples[ratio.slow].items()
            }
            found[ratio.what] = Growth(
                ours=round(growth["ours"], 3),
                wheel=round(growth["wheel"], 3),
                target=ratio.target,
                reached=growth["ours"] <= ratio.target,
            )
    return found


def save(report: Report, path: Path) -> None:
    """Write the JSON, and the plot beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    plot(report, path.with_suffix(".png"))


def show(report: Report) -> None:
    """Print the tables, the ratio first."""
    machine = report.machine
    title = f"{WHEEL} {report.versions[WHEEL]} over ours, {machine.cpu}, {machine.cores} cores"
    table = Table(title=title, caption="CPU time of one thread, microseconds")
    for column in ("ratio", "what", "ours", "target", "wheel"):
        table.add_column(column, justify="left" if column == "what" else "right", no_wrap=True)
    for name, work in report.work.items():
        ours = _marked(f"{work.ours_us:,.2f}", work.reached)
        target = "" if work.target_us is None else f"{work.target_us:g}"
        figures = (ours, target, f"{work.wheel_us:,.0f}")
        table.add_row(f"{work.ratio:,.1f}x", SUITE[name].what, *figures)
    table.add_section()
    for what, growth in report.growth.items():
        ours = _marked(f"{growth.ours:.2f}x", growth.reached)
        figures = (ours, f"{growth.target:g}x", f"{growth.wheel:.2f}x")
        table.add_row(f"{growth.wheel / growth.ours:,.1f}x", what, *figures)
    Console().print(table)


def _marked(figure: str, reached: bool) -> str:
    return figure if reached else f"[bold red]MISSED[/] {figure}"


def plot(report: Report, path: Path) -> None:
    """Left how many times faster ours is, right how much of its target it takes."""
    from matplotlib.figure import Figure

    names = list(report.work)[::-1]
    ratios = [report.work[name].ratio for name in names]
    figure = Figure(figsize=(12, 0.42 * len(names) + 1.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    bars = left.barh([SUITE[name].what for name in names], ratios, color="tab:blue")
    left.bar_label(bars, [f"{ratio:,.1f}x" for ratio in ratios], padding=3)
    left.set_xscale("log")
    left.set_xlim(min(1, *ratios), max(ratios) * 20)
    left.set_xlabel(f"CPU time of {WHEEL} {report.versions[WHEEL]} over ours")
    for row, name in enumerate(names):
        if target := _against_target(report, name):
            share, label = target
            bar = right.barh(row, share, color="tab:green" if share <= 1 else "tab:red")
            right.bar_label(bar, [label], padding=3)
    right.axvline(1, color="black", linewidth=1)
    right.margins(x=0.3)
    right.set_xlabel("ours over its target")
    figure.savefig(path, dpi=110)


def _against_target(report: Report, name: str) -> tuple[float, str] | None:
    """How much of its target a workload takes, and the figures in words."""
    work = report.work[name]
    if work.target_us is not None:
        return work.ours_us / work.target_us, f"{work.ours_us:.3g} of {work.target_us:g} us"
    for ratio in RATIOS:
        if ratio.slow == name and ratio.what in report.growth:
            growth = report.growth[ratio.what]
            return growth.ours / growth.target, f"{growth.ours:.2f}x of {growth.target:g}x"
    return None
