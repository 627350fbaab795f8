# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A process that runs workloads on one of the two control planes, whenever it is told to.

Each has a process of its own: neither's memory, types or garbage disturb the other.
"""

from __future__ import annotations

import gc
import os
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Literal

from suite import SUITE
from workloads import MakePlane, Workload

Side = Literal["ours", "wheel"]


class Worker:
    """The process, seen from the one that says what comes next."""

    def __init__(self, side: Side) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(side, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def prepare(self, name: str) -> None:
        """Bring a control plane into the workload's state, and keep it."""
        self._ask("prepare", name)

    def repeat(self, name: str) -> float:
        """One repetition of what was prepared, in microseconds."""
        return self._ask("repeat", name)

    def forget(self) -> None:
        """Everything that was prepared."""
        self._ask("forget", "")

    def close(self) -> None:
        self._connection.close()
        self._process.join()

    def _ask(self, request: str, name: str) -> float:
        self._connection.send((request, name))
        answer: float | str = self._connection.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"{name or request} failed in its process:\n{answer}")
        return answer


def _serve(side: Side, connection: Connection) -> None:
    """Answer until the other end closes. All on one core, the same for both sides."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    gc.freeze()
    gc.disable()
    prepared: dict[str, Workload] = {}
    while True:
        try:
            request, name = connection.recv()
        except EOFError:
            return
        try:
            connection.send(_answer(prepared, side, request, name))
        except Exception:
            connection.send(traceback.format_exc())


def _answer(prepared: dict[str, Workload], side: Side, request: str, name: str) -> float:
    if request == "repeat":
        return prepared[name].repetition()
    if request == "prepare":
        prepared[name] = SUITE[name].make(_plane(side))
    else:
        prepared.clear()
        gc.collect()
    return 0.0


def _plane(side: Side) -> MakePlane:
    if side == "ours":
        from plane_ours import OurPlane

        return OurPlane
    from plane_wheel import WheelPlane

    return WheelPlane
