# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the children print, on its way to whoever reads it: who does not read stops nobody.

A terminal that is held, or a log collector that hangs, fills the pipe. A parent that waited there
would not see a child die, nor a signal; children whose output it no longer takes would wait next.
"""

from __future__ import annotations

import os
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
        self._bytes = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def write(self, content: bytes) -> None:
        """Pass it on as soon as there is room; never waits."""
        if not content:
            return
        with self._changed:
            if self._bytes + len(content) > self._most:
                self._dropped += len(content)
                return
            if self._dropped:
                content = _told(self._dropped) + content
                self._dropped = 0
            self._waiting.append(content)
            self._bytes += len(content)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._pass_on, name="outlet", daemon=True)
                self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Wait until all is read, so long at most; whether it is."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._bytes:
                if not self._changed.wait(deadline - time.monotonic()):
                    return False
        return True

    def _pass_on(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                content = self._waiting.popleft()
            _write(self._fd, content)
            with self._changed:
                self._bytes -= len(content)
                self._changed.notify_all()


def _told(count: int) -> bytes:
    return f"({count} bytes of output were dropped: nobody read them in time)\n".encode()


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        return  # the reader is gone, and with it whoever could be told
