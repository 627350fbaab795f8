# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The files of answers: in the order of the input, and the place to go on from after any end.

Each line has its number in the input as ``id``, is written at once, and after those of all lines
before it. So a run that was killed has left the answers of the first lines, and at most a piece of
one more.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from tokenspeed.batch.lines import BadLine, Line, custom_id, read_lines

_ID = "line-"
_BEGINNING = f'{{"id":"{_ID}'.encode()


class BatchError(Exception):
    """Files that cannot be used, or a server that is gone; says what to do."""


class Response(msgspec.Struct):
    """What the server said."""

    status_code: int
    request_id: str | None
    body: Any


class Problem(msgspec.Struct):
    """Why there is no response."""

    code: str
    message: str


class Result(msgspec.Struct):
    """A line of the output or of the errors, in the form that OpenAI's batch API gives."""

    id: str
    custom_id: str | None
    response: Response | None = None
    error: Problem | None = None

    @property
    def good(self) -> bool:
        return self.response is not None and self.response.status_code == 200

    @classmethod
    def bad(cls, line: Line, why: BadLine) -> Result:
        """Of a line that asks for nothing."""
        return cls(name_of(line), why.custom_id, error=Problem(why.code, why.message))


class _Head(msgspec.Struct):
    """What of a written line says where it belongs."""

    id: str
    custom_id: str | None


_head = msgspec.json.Decoder(_Head)


def name_of(line: Line) -> str:
    """The ``id`` of a line's result."""
    return f"{_ID}{line.number}"


@dataclass
class Done:
    """How far the runs before came.

    Attributes:
        line: number of the last line that is answered; 0: none.
        bytes: of the input up to there.
        answered, failed: lines in the two files.
        complete: whether no line is left.
    """

    line: int = 0
    bytes: int = 0
    answered: int = 0
    failed: int = 0
    complete: bool = False


class Results:
    """The two files, open to append.

    Attributes:
        done: what they held when they were opened.
    """

    def __init__(self, output: _File, errors: _File, done: Done) -> None:
        self.done = done
        self._output, self._errors = output, errors

    def write(self, result: Result) -> None:
        """Append a line, at once."""
        encoded = msgspec.json.encode(result) + b"\n"
        (self._output if result.good else self._errors).write(encoded)

    def flush(self) -> None:
        """See that all of it is on the disk."""
        self._output.flush()
        self._errors.flush()


class _File:
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
            raise BatchError(
                f"cannot write {self._path}: {error.strerror}; see that it can be written"
            ) from error

    def _taken(self) -> BatchError:
        return BatchError(f"another run writes {self._path}; wait for its end")


@contextmanager
def open_results(source: Path, output: Path, errors: Path, *, overwrite: bool) -> Iterator[Results]:
    """The files, cut behind the last line in order that is answered.

    Raises:
        BatchError: they are of another input, or of no batch, or another run writes them; or the
            input is none that can be read more than once.
    """
    if not source.is_file():
        raise BatchError(
            f"{source} is no regular file, and INPUT is read more than once; write it to a file "
            "first"
        )
    if any(_same(*pair) for pair in combinations((source, output, errors), 2)):
        raise BatchError("INPUT, OUTPUT and the file of errors must be three files")
    with ExitStack() as stack:
        answered, failed = _File(output), _File(errors)
        for file in (answered, failed):
            stack.callback(file.close)
            file.open()
        answered.create()
        if overwrite:
            answered.clear()
            failed.remove()
            done = Done()
        else:
            done = _resume(source, output, errors)
        results = Results(answered, failed, done)
        stack.callback(results.flush)
        yield results


def _same(one: Path, other: Path) -> bool:
    """Whether both name one file, be it by links, or one that does not exist yet."""
    if os.path.exists(one) and os.path.exists(other):
        return os.path.samefile(one, other)
    return one.resolve() == other.resolve()


def _resume(source: Path, output: Path, errors: Path) -> Done:
    """Walk all three files side by side up to the first line without an answer; cut there.

    What is cut off are results of lines of this input as well: others are nobody's to lose.
    """
    done = Done()
    lines = read_lines(source)
    with _Written(output) as answered, _Written(errors) as failed:
        for line in lines:
            if answered.take(line):
                done.answered += 1
            elif failed.take(line):
                done.failed += 1
            else:
                break
            done.line, done.bytes = line.number, line.end
        else:
            done.complete = True
        kept = answered.end, failed.end
        while (answered.left or failed.left) and (behind := next(lines, None)):
            answered.take(behind)
            failed.take(behind)
        answered.check_rest(done.complete)
        failed.check_rest(done.complete)
        answered.cut(kept[0])
        failed.cut(kept[1])
    return done


class _Written:
    """One file of results that is walked.

    Attributes:
        end: offset of the byte behind the last result that was taken.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = read_lines(path) if path.exists() else iter(())
        self.end = 0
        self._piece: Line | None = None
        self._next: tuple[Line, _Head] | None = None

    def __enter__(self) -> _Written:
        self._advance()
        return self

    def __exit__(self, *_: object) -> None:
        del self._lines

    @property
    def left(self) -> bool:
        """Whether a whole result is next."""
        return self._next is not None

    def take(self, line: Line) -> bool:
        """Whether the next result is of this line; if so, go on."""
        if self._next is None or self._next[1].id != name_of(line):
            return False
        written, head = self._next
        if head.custom_id != custom_id(line):
            raise BatchError(
                f"{self._path} is of another input: its {head.id} is {head.custom_id!r}, the "
                f"input's is {custom_id(line)!r}; choose another OUTPUT, or --overwrite"
            )
        self.end = written.end
        self._advance()
        return True

    def check_rest(self, complete: bool) -> None:
        """Refuse what is left when the input, or what it has for this file, ran out.

        Args:
            complete: whether each line of the input has its result, so that not even a piece of
                one more can be of this input.
        """
        if self._next is not None and not self._next[1].id.startswith(_ID):
            raise self._alien(self._next[0])
        if self._next is not None or (complete and self._piece is not None):
            raise BatchError(
                f"{self._path} is of another input: it has results of lines that INPUT does not "
                "have; choose another OUTPUT, or --overwrite"
            )

    def cut(self, kept: int) -> None:
        """Forget what is behind so many bytes."""
        if self._path.exists() and self._path.stat().st_size > kept:
            os.truncate(self._path, kept)

    def _advance(self) -> None:
        self._next = None
        line = next(self._lines, None)
        if line is None:
            return
        if self._is_piece(line):
            self._piece = line
            return
        try:
            self._next = (line, _head.decode(line.content or b""))
        except msgspec.DecodeError:
            raise self._alien(line) from None

    def _is_piece(self, line: Line) -> bool:
        """Whether a run was killed while it wrote this line. What is not ours is no piece."""
        if line.end < self._path.stat().st_size:
            return False
        with self._path.open("rb") as file:
            file.seek(line.end - 1)
            whole = file.read(1) == b"\n"
        written = line.content or b""
        return not whole and written.startswith(_BEGINNING[: len(written)])

    def _alien(self, line: Line) -> BatchError:
        return BatchError(
            f"{self._path} exists, and its line {line.number} is no result of a batch; choose "
            "another OUTPUT, or --overwrite"
        )
