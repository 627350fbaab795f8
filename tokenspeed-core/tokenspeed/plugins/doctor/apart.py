# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the doctor tries in processes of their own: loading a provision, opening a library."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from tokenspeed.plugins.discover.build_tags import NativeFile
from tokenspeed.plugins.discover.origin import mend
from tokenspeed.plugins.doctor.try_load import Tried
from tokenspeed.plugins.load.separate import START, run_apart
from tokenspeed.plugins.plan import Planned

DEADLINE = 10.0
"""Seconds that a plugin may load, or a library open."""

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
    ended = run_apart("tokenspeed.plugins.doctor.try_load", planned, DEADLINE)
    if ended.answer:
        return msgspec.json.decode(ended.answer, type=Tried)
    if ended.status is None:
        return _failed(planned, DEADLINE, f"did not load within {DEADLINE:g} s")
    return _failed(planned, 0.0, "\n".join([ended.how, *ended.tail]))


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
