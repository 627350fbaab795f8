# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A server of fake children in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent

PLATFORM = """
from tokenspeed_sdk.contracts import Accept

class Platform:
    name, embedded = "fake", False

    def probe(self):
        return Accept(1, "is there")

    def prepare(self, threads):
        pass

    def open(self, index=0):
        raise RuntimeError("no device to open")
"""

MANIFEST = """
manifest = "1.0"
id = "fake"
[[provides]]
contract = "platform"
number = "1.0"
name = "fake"
"""

ENTRY_POINTS = """
[tokenspeed.plugins]
fake = fake_platform:tokenspeed_plugin.toml
[tokenspeed.platform]
fake = fake_platform:Platform
"""


def write_platform(folder: Path) -> None:
    """An installed distribution with a platform that every machine has."""
    package, info = folder / "fake_platform", folder / "fake_platform-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text(PLATFORM)
    (package / "tokenspeed_plugin.toml").write_text(MANIFEST)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-platform\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)


class Server:
    """The running fake server."""

    def __init__(self, folder: Path, behaviour: dict[str, str], unread: bool) -> None:
        site = folder / "site"
        if not site.exists():
            write_platform(site)
        path = [str(site), str(HERE), os.environ.get("PYTHONPATH", "")]
        self._log = folder / "log"
        self.errors = folder / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "fake_server.py")],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path),
                    "FAKE_LOG": str(self._log),
                    **behaviour,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if unread else errors,
            )

    def wait_serving(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"SERVING"), self.errors.read_text()

    def wait(self, seconds: float = 15) -> int:
        return self.process.wait(seconds)

    def last_lines(self, count: int) -> list[str]:
        return self.errors.read_text().splitlines()[-count:]

    def log(self, word: str) -> list[list[str]]:
        """The lines about ``start`` or ``stop``, in order, without that word."""
        lines = [line.split() for line in self._log.read_text().splitlines()]
        return [line[1:] for line in lines if line[0] == word]

    def pids(self) -> list[int]:
        return [int(line[1]) for line in self.log("start")]

    def close(self) -> None:
        """Kill the server; its children follow."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """The processes that still run when the time is over."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[object]:
    servers: list[Server] = []

    def start(*, unread: bool = False, **behaviour: str) -> Server:
        """``unread``: nobody reads what it prints."""
        servers.append(Server(tmp_path, behaviour, unread))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(name="wait_gone")
def _wait_gone() -> object:
    return wait_gone
