# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``ts serve`` as a child process, for benchmarks and end-to-end tests."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

TS = (sys.executable, "-c", "from tokenspeed.cli.main import main; main()")
"""The command ``ts`` of this very environment."""

_ADMIN = re.compile(r"admin port (\d+)")
_GRPC = re.compile(r"gRPC port (\d+)")
_CURL = re.compile(r"^curl (http://\S+?)/v1/")
_STOP_S = 20.0


@dataclass
class Served:
    """A running server.

    Attributes:
        url: of the gateway, without a path.
        admin_url: of the admin port.
        grpc_address: host and port of the front.
        started_s: seconds from the start of the process to the printed curl line.
        output: lines printed so far.
    """

    process: subprocess.Popen[str]
    url: str
    admin_url: str
    grpc_address: str
    started_s: float
    output: list[str] = field(default_factory=list)


class ServeFailedError(Exception):
    """``ts serve`` ended instead of serving; the text is what it printed."""


@contextmanager
def served(
    folder: str, arguments: Sequence[str] = (), *, timeout_s: float = 120
) -> Iterator[Served]:
    """Serve a model for the length of the block."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [*TS, "serve", folder, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output: list[str] = []
    lines: SimpleQueue[str] = SimpleQueue()
    reader = threading.Thread(target=_read, args=(process, output, lines), daemon=True)
    reader.start()
    try:
        url, admin, grpc = _addresses(process, lines, output, start + timeout_s)
        yield Served(process, url, admin, grpc, time.perf_counter() - start, output)
    finally:
        _stop(process)
        reader.join()


def _read(process: subprocess.Popen[str], output: list[str], lines: SimpleQueue[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            output.append(line)
            lines.put(line)


def _addresses(
    process: subprocess.Popen[str], lines: SimpleQueue[str], output: list[str], deadline: float
) -> tuple[str, str, str]:
    """(gateway URL, admin URL, gRPC address), from what the server prints once it serves."""
    admin = grpc = ""
    while True:
        try:
            line = lines.get(timeout=0.5)
        except Empty:
            if process.poll() is not None and lines.empty():
                raise ServeFailedError("".join(output)) from None
            if time.perf_counter() > deadline:
                raise ServeFailedError("not ready in time:\n" + "".join(output)) from None
            continue
        if found := _ADMIN.search(line):
            admin = f"http://127.0.0.1:{found[1]}"
        if found := _GRPC.search(line):
            grpc = f"127.0.0.1:{found[1]}"
        if (found := _CURL.match(line)) and admin:
            return found[1], admin, grpc


def _stop(process: subprocess.Popen[str]) -> None:
    """End it as Ctrl-C would; insist when it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
