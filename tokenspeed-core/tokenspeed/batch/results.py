# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The two files of answers, in the order of the input: those that are good, and those in error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path

import msgspec

from tokenspeed.batch.errors import BatchError
from tokenspeed.batch.own_file import OwnFile
from tokenspeed.batch.result import Result
from tokenspeed.batch.resume import Done, resume


class Results:
    """The two files, open to append.

    Attributes:
        done: what they held when they were opened.
    """

    def __init__(self, output: OwnFile, errors: OwnFile, done: Done) -> None:
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
        answered, failed = OwnFile(output), OwnFile(errors)
        for file in (answered, failed):
            stack.callback(file.close)
            file.open()
        answered.create()
        if overwrite:
            answered.clear()
            failed.remove()
            done = Done()
        else:
            done = resume(source, output, errors)
        results = Results(answered, failed, done)
        stack.callback(results.flush)
        yield results


def _same(one: Path, other: Path) -> bool:
    """Whether both name one file, be it by links, or one that does not exist yet."""
    if os.path.exists(one) and os.path.exists(other):
        return os.path.samefile(one, other)
    return one.resolve() == other.resolve()
