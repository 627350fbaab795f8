# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Our control plane beside the published one, in turn, on the same work. Prints and saves."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from report import Samples, new_report, save, show
from suite import SUITE, in_turn
from worker import Side, Worker

SIDES: tuple[Side, ...] = ("ours", "wheel")


def measure(names: list[str], repetitions: int, workers: dict[Side, Worker]) -> Samples:
    """Samples of workloads that are compared with each other, taken in turn on both sides."""
    samples: Samples = {name: {side: [] for side in SIDES} for name in names}
    for name in names:
        for worker in workers.values():
            worker.prepare(name)
    for _ in range(repetitions):
        for side, worker in workers.items():
            for name in names:
                samples[name][side].append(worker.repeat(name))
    for worker in workers.values():
        worker.forget()
    return samples


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, help="JSON to write; a plot is put beside it")
    parser.add_argument("--repetitions", type=int, default=9, choices=range(1, 41), metavar="1..40")
    parser.add_argument("--work", action="append", choices=SUITE, help="only this one")
    return parser.parse_args()


def main() -> None:
    """Measure what was chosen, then report."""
    options = parse()
    workers = {side: Worker(side) for side in SIDES}
    samples: Samples = {}
    for group in in_turn():
        if names := [name for name in group if not options.work or name in options.work]:
            print(f"{', '.join(names)} ...", flush=True)
            samples |= measure(names, options.repetitions, workers)
    for worker in workers.values():
        worker.close()
    report = new_report(shlex.join(["bench/scheduler/run.py", *sys.argv[1:]]), samples)
    if options.save:
        save(report, options.save)
    show(report)


if __name__ == "__main__":
    main()
