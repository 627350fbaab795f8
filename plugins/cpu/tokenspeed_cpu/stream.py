# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""An ordered queue of work on a thread of its own.

What happens to errors. Work that raises ends there; work queued behind it runs all the same,
because steps of an engine are of different requests, and one that failed says nothing about the
next. The error travels with the stream: every event recorded behind it carries it until one of them
is waited for and raises it. From then on it is reported: no other event raises it, and events
recorded later don't carry it. Several errors are reported one event at a time, oldest first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], None]


class CpuEvent:
    """A point in a stream. Any number of threads may wait for it."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._failures: tuple[_Failure, ...] = ()

    def done(self) -> bool:
        """Whether all work queued before it has ended, failed work included. Never blocks."""
        return self._done.is_set()

    def wait(self) -> None:
        """Block without the GIL until done; raise the oldest unreported error of the stream.

        An event that raised an error raises it again when it is waited for again.
        """
        self._done.wait()
        for failure in self._failures:
            if failure.claim(self):
                raise failure.error

    def reach(self, failures: tuple[_Failure, ...]) -> None:
        """Called by the stream's thread when it gets here."""
        self._failures = failures
        self._done.set()


class CpuStream:
    """A queue with one daemon thread that runs the work in order."""

    def __init__(self, name: str = "cpu-stream") -> None:
        self._queue: SimpleQueue[Work | CpuEvent | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._failures: tuple[_Failure, ...] = ()  # only the thread touches it
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Work) -> None:
        """Queue work and return at once. RuntimeError after ``close``."""
        self._put(work)

    def record(self) -> CpuEvent:
        """An event behind all work queued so far. RuntimeError after ``close``."""
        event = CpuEvent()
        self._put(event)
        return event

    def close(self) -> None:
        """Wait for queued work and end the thread. Idempotent; not from work of this stream."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _put(self, item: Work | CpuEvent) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the stream is closed; nothing can be queued any more")
            self._queue.put(item)

    def _loop(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, CpuEvent):
                self._failures = tuple(one for one in self._failures if not one.reported)
                item.reach(self._failures)
            else:
                self._run(item)
            # Let go of it before the next wait, and of the tensors that it holds.
            del item

    def _run(self, work: Work) -> None:
        try:
            work()
        except BaseException as error:  # the thread must outlive whatever work raises
            self._failures = (*self._failures, _Failure(error))


class _Failure:
    """An error and the event that reported it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self._lock = threading.Lock()
        self._reporter: CpuEvent | None = None

    @property
    def reported(self) -> bool:
        return self._reporter is not None

    def claim(self, event: CpuEvent) -> bool:
        """Whether ``event`` is the one to report it: the first to ask, from then on alone."""
        with self._lock:
            if self._reporter is None:
                self._reporter = event
            return self._reporter is event
