# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How far the runs before came, whatever byte they ended at.

Each result was written at once, and after those of all lines before it. So a run that was killed
has left the answers of the first lines, and at most a piece of one more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tokenspeed.batch.errors import BatchError
from tokenspeed.batch.lines import Line, custom_id, read_lines
from tokenspeed.batch.result import BEGINNING, PREFIX, Head, head_of, name_of


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


def resume(source: Path, output: Path, errors: Path) -> Done:
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
        self._next: tuple[Line, Head] | None = None

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
        if self._next is not None and not self._next[1].id.startswith(PREFIX):
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
            self._next = (line, head_of(line.content or b""))
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
        return not whole and written.startswith(BEGINNING[: len(written)])

    def _alien(self, line: Line) -> BatchError:
        return BatchError(
            f"{self._path} exists, and its line {line.number} is no result of a batch; choose "
            "another OUTPUT, or --overwrite"
        )
