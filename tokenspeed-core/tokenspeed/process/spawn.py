# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The parent's side of a child process: start it, hear from it, say why it ended, end it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tokenspeed.process.failure import DRAIN
from tokenspeed.process.note import PARENT, read_note, write_note

_TAIL_LINES = 20
_TAIL_BYTES = 8192
_CHUNK = 65536
_NOISE = "Extension modules:"  # faulthandler lists all that are loaded
_STYLE = re.compile(rb"\x1b\[[0-9;]*m")
"""The gateway colours its log wherever it goes, whatever NO_COLOR says."""


class Child:
    """A started process. Use from the thread that started it."""

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        status_fd: int,
        output_fd: int | None,
        note_fd: int,
    ) -> None:
        self.name = name
        self.process = process
        self.pidfd = os.pidfd_open(process.pid)  # readable once the process has ended
        self.status_fd = status_fd  # non-blocking
        self.output_fd = output_fd  # non-blocking, or None when the child writes to our stderr
        self.note_fd = note_fd  # a file of one line: what it is doing, if that may kill it
        self.ready: dict[str, Any] | None = None  # the "ready" event
        self.phase = ""  # which part of its start it is in
        self.quiet = False  # whether captured output is only remembered
        self.outlet: Callable[[bytes], None] = _to_stderr  # takes captured output
        self.drained = False  # whether it said that nothing runs in it any more
        self._told_to_end = False
        self._unparsed = b""
        self._error: str | None = None
        self._tail = b""

    def read_status(self) -> None:
        """Take in what it reported since the last call."""
        *lines, self._unparsed = (self._unparsed + _read_all(self.status_fd)).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "ready":
                self.ready = event
            elif event["event"] == "failed" and self._error is None:
                self._error = event["error"]
            elif event["event"] == "phase":
                self.phase = event["phase"]
            elif event["event"] == "drained":
                self.drained = True
            elif event["event"] == "ending":
                self._told_to_end = True

    def pump_output(self) -> None:
        """Pass on what the child printed, without colours, and remember the end of it."""
        if self.output_fd is None:
            return
        output = _STYLE.sub(b"", _read_all(self.output_fd))
        if not self.quiet:
            self.outlet(output)
        self._tail = (self._tail + output)[-_TAIL_BYTES:]

    def tail(self) -> list[str]:
        """The last lines that were pumped."""
        lines = self._tail.decode(errors="replace").splitlines()
        told = [line for line in lines if line.strip() and not line.startswith(_NOISE)]
        return told[-_TAIL_LINES:]

    def ended(self) -> bool:
        return self.process.poll() is not None

    def ended_in_order(self) -> bool:
        """Whether it did as it was told: code of a plugin that calls exit(0) is a failure."""
        code = self.process.poll()
        return self._error is None and (code is None or (code == 0 and self._told_to_end))

    def failure(self) -> str | None:
        """Why the child ended or is about to end; None while it is well."""
        ended = self.ended()
        self.read_status()
        if self._error is not None:
            return self._error
        if not ended:
            return None
        self.pump_output()
        return "\n".join([self._end(), *self.tail()])

    def _end(self) -> str:
        """How it ended; of one that was killed also what it was doing."""
        code = self.process.returncode
        doing = read_note(self.note_fd) if code < 0 else ""
        if not doing and self.phase and self.ready is None:
            return f"{_exit_text(code)} in its phase {self.phase!r}"
        return _exit_text(code) + (f" while it ran {doing}" if doing else "")

    def doing(self) -> str:
        """What a child that is not ready does, as far as it said so."""
        note = read_note(self.note_fd)
        return note or self.phase or "loading Python"

    def tell(self, why: str) -> None:
        """Leave word of why another child ended."""
        write_note(self.note_fd, why, PARENT)

    def drain(self) -> None:
        """Ask it to take nothing new, and to say when nothing runs any more; again: to cut off what
        runs."""
        if not self.ended():
            self.process.send_signal(DRAIN)

    def terminate(self) -> None:
        """Ask it to end."""
        self._told_to_end = True
        if not self.ended():
            self.process.terminate()

    def kill(self) -> None:
        if not self.ended():
            self.process.kill()

    def stop(self, grace: float = 5.0) -> None:
        """Ask it to end, insist after ``grace`` seconds, and release everything. Idempotent."""
        self.terminate()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.close()

    def close(self) -> None:
        """Release the descriptors of an ended child. Idempotent."""
        for fd in (self.pidfd, self.status_fd, self.output_fd, self.note_fd):
            if fd is not None and fd >= 0:
                os.close(fd)
        self.pidfd = self.status_fd = self.note_fd = -1
        self.output_fd = None

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop()


def spawn(
    name: str, module: str, plan: bytes, *, log_level: str = "warning", capture: bool = False
) -> Child:
    """Start ``python -m module`` with an fd to read ``plan`` from and an fd to write status to.

    No preexec_fn (unsafe beside threads) and no multiprocessing (it pickles); the child is its own
    process group, so that the terminal's Ctrl-C reaches the parent alone, which orders the end.
    """
    plan_fd = os.memfd_create(f"tokenspeed-{name}-plan")
    note_fd = os.memfd_create(f"tokenspeed-{name}-note")
    status_fd, child_status_fd = os.pipe()
    try:
        os.write(plan_fd, plan)
        os.lseek(plan_fd, 0, os.SEEK_SET)
        command = [sys.executable, "-P", "-m", module, "--role", name, "--parent", str(os.getpid())]
        command += ["--plan-fd", str(plan_fd), "--status-fd", str(child_status_fd)]
        command += ["--note-fd", str(note_fd), "--log-level", log_level]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if capture else 2,  # stdout belongs to the parent's caller
            stderr=subprocess.STDOUT if capture else None,
            pass_fds=(plan_fd, child_status_fd, note_fd),
            process_group=0,
        )
    except BaseException:
        os.close(status_fd)
        os.close(note_fd)
        raise
    finally:
        os.close(plan_fd)
        os.close(child_status_fd)
    output_fd = None
    if process.stdout is not None:
        output_fd = os.dup(process.stdout.fileno())
        process.stdout.close()
        os.set_blocking(output_fd, False)
    os.set_blocking(status_fd, False)
    return Child(name, process, status_fd, output_fd, note_fd)


def _to_stderr(output: bytes) -> None:
    sys.stderr.buffer.write(output)
    sys.stderr.buffer.flush()


def _read_all(fd: int) -> bytes:
    """Everything that can be read from a non-blocking fd now."""
    if fd < 0:
        return b""
    parts = []
    while True:
        try:
            part = os.read(fd, _CHUNK)
        except BlockingIOError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def _exit_text(code: int) -> str:
    if -code == signal.SIGKILL:
        return "killed by SIGKILL (when the machine runs out of memory, the kernel does that)"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended by itself with exit code {code}"
