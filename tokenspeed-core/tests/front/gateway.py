# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The published gateway as a process."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

import aiohttp


@dataclass(frozen=True)
class Gateway:
    """A gateway that serves."""

    url: str
    metrics_url: str

    async def metric(self, name: str, label: str) -> float:
        """A number of its own, summed over all that have a label with this value."""
        async with aiohttp.ClientSession() as http, http.get(self.metrics_url) as answer:
            text = await answer.text()
        lines = re.findall(rf'^{name}{{.*="{label}".*}} (\S+)$', text, re.MULTILINE)
        return sum(map(float, lines))


@asynccontextmanager
async def run_gateway(ports: Sequence[int], policy: str, *flags: str) -> AsyncIterator[Gateway]:
    """In front of the gRPC services at these ports; ``flags``: further ones."""
    port, metrics_port = _free_port(), _free_port()
    command = [sys.executable, "-m", "smg", "launch", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    command += ["--worker-urls", *(f"grpc://127.0.0.1:{worker}" for worker in ports)]
    command += ["--policy", policy, *flags]
    command += ["--worker-warmup-divert-every", "0"]  # else every eighth hit goes elsewhere
    command += ["--worker-startup-check-interval", "1", "--shutdown-grace-period-secs", "0"]
    command += ["--log-level", "error", "--disable-retries", "--disable-circuit-breaker"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    gateway = Gateway(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}/metrics")
    try:
        await _until_ready(gateway.url, process, len(ports))
        yield gateway
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _until_ready(url: str, process: subprocess.Popen[bytes], workers: int) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(20):
        while True:
            assert process.poll() is None, "the gateway ended"
            try:
                async with http.get(f"{url}/workers") as response:
                    listed = (await response.json())["workers"]
                    ready = sum(bool(worker["is_healthy"]) for worker in listed)
                async with http.get(f"{url}/readiness") as response:
                    if response.status == 200 and ready == workers:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
