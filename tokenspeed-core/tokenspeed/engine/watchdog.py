# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A step that never ends is said in the log, with what it stands in.

launching = Activity("launching its kernels")
with warn_of_hangs([launching], "linear@1 cpu"):
    with launching:
        ...
"""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds after which a step is reported; the slowest prefill chunk takes less."""


class Activity:
    """Something that the loop does in every step. Enter and leave it in one thread.

    Attributes:
        since: when it began, in seconds of the monotonic clock; None: it is not being done.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.since: float | None = None

    def __enter__(self) -> None:
        self.since = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.since = None


@contextmanager
def warn_of_hangs(activities: Sequence[Activity], kernels: str) -> Iterator[None]:
    """Inside, a thread looks now and then whether one of the activities takes too long.

    Args:
        kernels: what runs in a step, for people.
    """
    done = threading.Event()
    thread = threading.Thread(target=_look, args=(activities, kernels, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _look(activities: Sequence[Activity], kernels: str, done: threading.Event) -> None:
    warned: set[float] = set()  # when those began that were reported
    while not done.wait(PATIENCE / 10):
        for activity in activities:
            since = activity.since
            if since is None or since in warned or time.monotonic() - since < PATIENCE:
                continue
            warned.add(since)
            log.warning(
                "the step has run for %.0f s, %s; its kernels: %s; where each thread is:",
                time.monotonic() - since,
                activity.what,
                kernels,
            )
            faulthandler.dump_traceback()
