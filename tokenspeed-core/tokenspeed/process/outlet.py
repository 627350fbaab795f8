# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the children print, on its way to whoever reads it: who does not read stops nobody.

A terminal that is held, or a log collector that hangs, fills the pipe. A parent that waited there
would not see a child die, nor a signal; children whose output it no longer takes would wait next.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections import deque

MOST_BYTES = 1 << 20
"""Kept for a reader that is slow; the rest is dropped and counted."""


class Outlet:
    """Writes to a descriptor on a thread of its own, which begins with the first write."""

    def __init__(self, fd: int = 2, most: int = MOST_BYTES) -> None:
        self._fd = fd
        self._most = most
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._bytes = 0  # of those, and of what is being written
        self._dropped = 0  # not told yet
        self._in_a_line = False  # whether what was taken last ended there
        self._thread: threading.Thread | None = None

    def write(self, content: bytes) -> None:
        """Pass on what there is room for, when it can be; never waits. The rest is counted."""
        with self._changed:
            kept = content[: max(0, self._most - self._bytes)]
            if kept:
                self._tell_dropped()
                self._take(kept)
            self._dropped += len(content) - len(kept)
            if self._thread is None and content:
                self._thread = threading.Thread(target=self._pass_on, name="outlet", daemon=True)
                self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Wait until all is read, so long at most; whether it is."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._bytes or self._dropped:
                if not self._changed.wait(deadline - time.monotonic()):
                    return False
        return True

    def _take(self, content: bytes) -> None:
        self._waiting.append(content)
        self._bytes += len(content)
        self._in_a_line = not content.endswith(b"\n")
        self._changed.notify_all()

    def _tell_dropped(self) -> None:
        """Where it is missing, on a line of its own."""
        if self._dropped:
            told = f"({self._dropped} bytes of output were dropped: nobody read them in time)\n"
            self._dropped = 0
            self._take(b"\n" * self._in_a_line + told.encode())

    def _pass_on(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                content = self._waiting.popleft()
            left = _write(self._fd, content)
            with self._changed:
                self._bytes -= len(content)
                self._dropped += left
                if not self._waiting and not left:
                    self._tell_dropped()  # else nobody would say it if nothing more is printed
                self._changed.notify_all()


def last_words(text: str, seconds: float = 1.0, fd: int = 2) -> None:
    """Print a line before the end, for somebody who reads it within so many seconds."""
    outlet = Outlet(fd)
    outlet.write(f"{text}\n".encode())
    outlet.flush(seconds)


def _await_room(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll()


def _write(fd: int, content: bytes) -> int:
    """Write it, however long that takes; how many bytes cannot be, though somebody may read later.

    A descriptor that is shared with others may have been made non-blocking by them.
    """
    view = memoryview(content)
    try:
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                _await_room(fd)
    except OSError as error:
        gone = error.errno in (errno.EPIPE, errno.EBADF, errno.EIO)  # nobody is left to be told
        return 0 if gone else len(view)
    return 0
