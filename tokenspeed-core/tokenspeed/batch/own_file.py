# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A file that one run alone writes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenspeed.batch.errors import BatchError


class OwnFile:
    """A file that this run alone appends to, from when it exists: the first line creates it.

    Raises:
        BatchError: another run has it, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._fd: int | None = None

    def open(self) -> None:
        """Take it if it exists."""
        if os.path.exists(self._path):
            self._open(0)

    def create(self) -> None:
        """Let it exist. One that came into being since this run began is another run's."""
        if self._fd is None:
            self._open(os.O_CREAT | os.O_EXCL)

    def write(self, content: bytes) -> None:
        self.create()
        assert self._fd is not None
        view = memoryview(content)
        with self._written():
            while view:
                view = view[os.write(self._fd, view) :]

    def flush(self) -> None:
        if self._fd is not None:
            with self._written():
                os.fsync(self._fd)

    def clear(self) -> None:
        """Let it be empty."""
        assert self._fd is not None
        with self._written():
            os.ftruncate(self._fd, 0)

    def remove(self) -> None:
        """Let it not exist."""
        if self._fd is not None:
            with self._written():
                self._path.unlink()
            self.close()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, flags: int) -> None:
        flags |= os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        with self._written():
            self._fd = os.open(self._path, flags, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between the two calls another run may have removed it: what is locked has no name.
            found = self._path.stat()
        except OSError as error:
            raise self._taken() from error
        if not os.path.samestat(os.fstat(self._fd), found):
            raise self._taken()

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except FileExistsError as error:
            raise self._taken() from error
        except OSError as error:
            why, folder = f"{error.strerror}; see that it can be written", self._path.parent
            if not folder.exists():
                why = f"there is no folder {folder}; make it"
            raise BatchError(f"cannot write {self._path}: {why}") from error

    def _taken(self) -> BatchError:
        return BatchError(f"another run writes {self._path}; wait for its end")
