# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Lines in memory that parent and child share, and that outlive who wrote them.

One is the child's: what it was doing when it was killed. One is the parent's: why another child
ended. Writing never waits, as a pipe would make it when nobody reads, and only the last is kept.
"""

from __future__ import annotations

import os

_SIZE = 1024
CHILD, PARENT = 0, 1


def write_note(fd: int, text: str, whose: int = CHILD) -> None:
    """Replace a line. OSError when ``fd`` is no such file."""
    os.pwrite(fd, text.encode()[:_SIZE].ljust(_SIZE, b"\0"), whose * _SIZE)


def read_note(fd: int, whose: int = CHILD) -> str:
    """A line; "" when none was written, or it was taken back."""
    return os.pread(fd, _SIZE, whose * _SIZE).rstrip(b"\0").decode(errors="replace")
