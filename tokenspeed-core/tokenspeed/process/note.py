# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One line that outlives the process that wrote it: what it was doing when it was killed.

It lies in a file in memory that parent and child share. Writing never waits, as a pipe would make
it when nobody reads, and only the last line is kept.
"""

from __future__ import annotations

import os

_SIZE = 1024


def write_note(fd: int, text: str) -> None:
    """Replace the line. OSError when ``fd`` is no such file."""
    os.pwrite(fd, text.encode()[:_SIZE].ljust(_SIZE, b"\0"), 0)


def read_note(fd: int) -> str:
    """The line; "" when none was written, or it was taken back."""
    return os.pread(fd, _SIZE, 0).rstrip(b"\0").decode(errors="replace")
