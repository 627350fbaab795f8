# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Things that are done in a process of their own, with a deadline."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from tokenspeed.plugins.discover.build_tags import NativeFile
from tokenspeed.plugins.discover.origin import mend
from tokenspeed.plugins.doctor.try_load import Tried
from tokenspeed.plugins.plan import Planned

DEADLINE = 10.0
"""Seconds that a plugin may load, or a library open."""

START = 60.0
"""Seconds for the start of an interpreter and the import of torch, on a busy machine."""

_TAIL = 12

_OPEN = """
import ctypes, sys
if sys.argv[2] == "torch":
    import torch
try:
    ctypes.CDLL(sys.argv[1])
except OSError as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True)
class Ended:
    """How a process of its own came to its end.

    Attributes:
        answer: what it left in its result, b"" for nothing.
        status: as of ``Popen.wait``; None when its time was over.
        tail: the last lines that it printed.
    """

    answer: bytes
    status: int | None
    tail: list[str]

    @property
    def how(self) -> str:
        """For people, behind the name of what ran."""
        if self.status is not None and -self.status in {*signal.Signals}:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"ended its process with status {self.status}"


def try_in_process(planned: Planned) -> Tried:
    """Load a provision elsewhere and say what came of it."""
    ended = run_apart("tokenspeed.plugins.doctor.try_load", planned, DEADLINE)
    if ended.answer:
        return msgspec.json.decode(ended.answer, type=Tried)
    if ended.status is None:
        return _failed(planned, DEADLINE, f"did not load within {DEADLINE:g} s")
    return _failed(planned, 0.0, "\n".join([ended.how, *ended.tail]))


def run_apart(module: str, planned: Planned, seconds: float) -> Ended:
    """Run a module for a provision, for so many seconds from when it says that it is ready.

    The module is told a file for its answer and a descriptor for the byte that says ready, and
    reads the provision as JSON from standard input.
    """
    with tempfile.TemporaryDirectory(prefix="tokenspeed-") as folder:
        result = Path(folder, "result")
        with Path(folder, "said").open("w+b") as said:
            status = _run([module, str(result)], planned, said, seconds)
            said.seek(0)
            tail = said.read().decode(errors="replace").splitlines()[-_TAIL:]
        return Ended(result.read_bytes() if result.is_file() else b"", status, tail)


def _run(command: list[str], planned: Planned, said: IO[bytes], seconds: float) -> int | None:
    """The status of the process; None if its time was over."""
    ready, child_ready = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", *command, str(child_ready)],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            pass_fds=(child_ready,),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        os.close(child_ready)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:  # its status says more
            stdin.write(msgspec.json.encode(planned))
        select.select([ready], [], [], START)  # or it ended, which closes the other end
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None
    finally:
        os.close(ready)


def open_library(native: NativeFile) -> str:
    """What the loader says against a library; "" when it opens."""
    first = "torch" if native.library.torch else ""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _OPEN, native.path, first],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE + (START if first else 0),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not open within {DEADLINE:g} s"
    said = done.stderr.decode(errors="replace").strip()
    return "" if done.returncode == 0 else said or f"its process ended with {done.returncode}"


def _failed(planned: Planned, seconds: float, what: str) -> Tried:
    return Tried(
        seconds,
        what=f'{planned.contract} "{planned.name}" of {planned.owner} {what}',
        where=planned.value,
        fix=f"deny it: --deny {planned.contract}={planned.name}, or {mend(planned.distribution)}",
    )
