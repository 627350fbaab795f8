# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Things that are done in a process of their own, with a deadline."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from tokenspeed.plugins.build_tags import NativeFile
from tokenspeed.plugins.plan import Planned
from tokenspeed.plugins.try_load import Tried

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


def try_in_process(planned: Planned) -> Tried:
    """Load a provision elsewhere and say what came of it."""
    with tempfile.TemporaryDirectory(prefix="tokenspeed-") as folder:
        result = Path(folder, "result")
        with Path(folder, "said").open("w+b") as said:
            status = _run(planned, result, said)
            said.seek(0)
            tail = said.read().decode(errors="replace").splitlines()[-_TAIL:]
        if result.is_file():
            return msgspec.json.decode(result.read_bytes(), type=Tried)
    if status is None:
        return _failed(planned, DEADLINE, f"did not load within {DEADLINE:g} s")
    return _failed(planned, 0.0, "\n".join([f"ended its process with status {status}", *tail]))


def _run(planned: Planned, result: Path, said: IO[bytes]) -> int | None:
    """The status of a process that loads a provision; None if its time was over."""
    ready, child_ready = os.pipe()
    command = [sys.executable, "-P", "-m", "tokenspeed.plugins.try_load", str(result)]
    try:
        process = subprocess.Popen(
            [*command, str(child_ready)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            pass_fds=(child_ready,),
        )
        os.close(child_ready)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:  # its status says more
            stdin.write(msgspec.json.encode(planned))
        select.select([ready], [], [], START)  # or it ended, which closes the other end
        return process.wait(DEADLINE)
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
        fix=f"deny it: --deny {planned.contract}={planned.name}, or report it to the authors of "
        f"{planned.distribution}",
    )
