# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Run a module for one provision in a process of its own, with a deadline."""

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

from tokenspeed.plugins.plan import Planned

START = 60.0
"""Seconds for the start of an interpreter and the import of torch, on a busy machine."""

_TAIL = 12


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
