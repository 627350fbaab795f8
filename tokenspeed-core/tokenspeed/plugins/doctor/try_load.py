# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Loads one provision in a process of its own, for the doctor: it may hang, crash or print.

    python -m tokenspeed.plugins.doctor.try_load RESULT FD    # a Planned as JSON on standard input

RESULT gets a ``Tried``; the descriptor FD gets a byte when the plugin's time begins.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from tokenspeed.plugins.plan import Planned
from tokenspeed.plugins.words import counted


class Tried(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        seconds: of import and first call, without the start of the interpreter.
        said: what it answered, such as a platform's verdict; "" when it failed.
        what, where, fix: of the failure, with the chain of exceptions; "" when it worked.
    """

    seconds: float
    said: str = ""
    what: str = ""
    where: str = ""
    fix: str = ""


def try_load(planned: Planned) -> str:
    """Load it and ask what an engine would ask first. PluginError."""
    return _TRIALS[planned.contract](planned)


def _verdict(planned: Planned) -> str:
    from tokenspeed_sdk.contracts.probe import Accept

    from tokenspeed.plugins.discover.metadata import printable
    from tokenspeed.plugins.errors import LoadError
    from tokenspeed.plugins.load.probe import probe_platform

    outcome: Any = probe_platform(planned).outcome
    if isinstance(outcome, LoadError):
        raise outcome
    word = f"accepts, score {outcome.score}" if isinstance(outcome, Accept) else "declines"
    return f"{word}: {printable(outcome.why)}"


def _kernels(planned: Planned) -> str:
    from tokenspeed.plugins.load.activate import read_one
    from tokenspeed.registry.candidates import read_kernels

    return counted(len(read_one(planned, read_kernels)), "kernel")


def _architectures(planned: Planned) -> str:
    from tokenspeed.plugins.load.activate import read_one
    from tokenspeed.registry.models import read_entries

    return ", ".join(sorted(read_one(planned, read_entries)))


def _hooks(planned: Planned) -> str:
    from tokenspeed.observe.observers import read_observers

    (active,) = read_observers([planned], needed=lambda _: True)
    return ", ".join(sorted(active.value.hooks)) if active.value else ""


def _grammar(planned: Planned) -> str:
    from tokenspeed.grammar.backends import kinds_of, read_backend
    from tokenspeed.plugins.load.activate import read_one

    return ", ".join(kinds_of(read_one(planned, read_backend)))


def _drafter(planned: Planned) -> str:
    from tokenspeed.plugins.load.activate import read_one
    from tokenspeed.registry.drafters import read_drafter

    return f"drafter {read_one(planned, read_drafter).name}"


_TRIALS = {
    "platform": _verdict,
    "kernel": _kernels,
    "model": _architectures,
    "observer": _hooks,
    "grammar": _grammar,
    "drafter": _drafter,
}


def main() -> None:
    from tokenspeed.plugins.errors import PluginError

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's; what is raised is the plugin's
    planned = msgspec.json.decode(sys.stdin.buffer.read(), type=Planned)
    if planned.contract in ("kernel", "model", "drafter") and find_spec("torch") is not None:
        import torch  # noqa: F401  (an engine has it already; its time is not the plugin's)
    os.write(int(sys.argv[2]), b".")
    start = time.perf_counter()
    try:
        tried = Tried(0.0, said=try_load(planned))
    except PluginError as error:
        tried = Tried(0.0, what=error.what, where=error.where, fix=error.fix)
    tried = msgspec.structs.replace(tried, seconds=round(time.perf_counter() - start, 3))
    Path(sys.argv[1]).write_bytes(msgspec.json.encode(tried))


if __name__ == "__main__":
    main()
