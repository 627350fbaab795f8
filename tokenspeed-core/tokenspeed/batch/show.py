# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How far a batch is, for people: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tokenspeed.batch.run import Progress as Done

EVERY_S = 30.0
"""Between lines where there is no terminal."""

Tick = Callable[[], None]


@contextmanager
def shown(done: Done, total_bytes: int, console: Console) -> Iterator[Tick]:
    """Call what it yields a few times a second."""
    start = time.monotonic()

    def text() -> str:
        rate = done.tokens / max(time.monotonic() - start, 1e-3)
        failed = f", {done.failed:,} in error" if done.failed else ""
        return f"{done.answered:,} answered{failed}, {rate:,.0f} tokens/s"

    if not console.is_terminal:
        yield _line_by_line(lambda: f"{done.bytes / max(total_bytes, 1):.0%}: {text()}", console)
        return
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(text(), total=max(total_bytes, 1), completed=done.bytes)

        def tick() -> None:
            bar.update(task, completed=done.bytes, description=text())

        yield tick
        tick()


def _line_by_line(text: Callable[[], str], console: Console) -> Tick:
    due = time.monotonic() + EVERY_S

    def tick() -> None:
        nonlocal due
        if time.monotonic() >= due:
            due += EVERY_S
            console.print(text(), highlight=False, soft_wrap=True)

    return tick
