# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The child's side of a launch: the one way in which engine and front start.

    from tokenspeed.process.child import start_child

    plan, status = start_child()     # before any heavy import
    status.send({"event": "ready", "grpc_port": 1234, "admin_port": 2345})

An exception that nobody catches is reported to the supervisor as ``{"event": "failed", ...}`` with
the text as "error", so a child just lets it go. SIGTERM raises Terminated, a SystemExit(0), in the
main thread (asyncio programs may replace the handler); SIGINT belongs to the supervisor.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tokenspeed.process.failure import StartError, Terminated
from tokenspeed.process.lifeline import tie_to_parent
from tokenspeed.process.note import PARENT, read_note, write_note

if TYPE_CHECKING:
    from tokenspeed.process.launch import LaunchPlan


class Status:
    """Tells the parent what happens here, one JSON object a line.

    Events: ``ready`` (with what the parent needs to know), ``failed`` (``error``: text for people),
    ``phase`` of a start, ``ending`` in order, ``drained`` (nothing runs any more).
    """

    def __init__(self, fd: int, note_fd: int) -> None:
        self._fd = fd
        self._note_fd = note_fd

    def send(self, event: dict[str, Any]) -> None:
        """Write one event. OSError when the parent is gone."""
        os.write(self._fd, json.dumps(event).encode() + b"\n")

    def phase(self, text: str) -> None:
        """Say what this process does from now on, until it is ready."""
        self.send({"event": "phase", "phase": text})

    def told(self) -> str:
        """Why another child ended, as the parent saw it; "" while all live."""
        return read_note(self._note_fd, PARENT)

    def doing(self, what: str) -> None:
        """Leave word of what may kill this process, for people; "" when it is over."""
        write_note(self._note_fd, what)


def start_child() -> tuple[LaunchPlan, Status]:
    """Tie this process to its parent, read the plan, prove its plugins, take over the signals."""
    arguments = read_arguments()
    tie_to_parent(arguments.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    for fd in (arguments.plan_fd, arguments.status_fd, arguments.note_fd):
        os.set_inheritable(fd, False)
    status = Status(arguments.status_fd, arguments.note_fd)
    # Where in Python a signal such as SIGSEGV came: the last of what it prints.
    faulthandler.enable(all_threads=False)
    _report_failures(status)
    _set_up_logging(arguments.role, arguments.log_level)
    status.phase("prove its plugins")
    plan = _read_plan(arguments.plan_fd)
    from tokenspeed.plugins.host import prove

    prove(plan.plugins)
    status.phase("import its code")
    return plan, status


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Started by ts; not by hand: use 'ts serve'.")
    parser.add_argument("--role", required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--plan-fd", type=int, required=True)
    parser.add_argument("--status-fd", type=int, required=True)
    parser.add_argument("--note-fd", type=int, required=True)
    parser.add_argument("--log-level", default="warning")
    return parser.parse_args()


def _exit_on_signal(signum: int, frame: object) -> None:
    raise Terminated(0)


def _set_up_logging(role: str, level: str) -> None:
    import logging

    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format=f"%(asctime)s {role} %(levelname)s %(name)s: %(message)s",
    )


def _read_plan(fd: int) -> LaunchPlan:
    import msgspec

    from tokenspeed.process.launch import LaunchPlan

    with open(fd, "rb") as file:
        return msgspec.json.decode(file.read(), type=LaunchPlan)


def _report_failures(status: Status) -> None:
    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        from tokenspeed.plugins.errors import PluginError, describe

        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends already; a second end says nothing
        explained = isinstance(error, PluginError | StartError)
        status.send({"event": "failed", "error": str(error) if explained else describe(error)})
        if not explained:
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = report
