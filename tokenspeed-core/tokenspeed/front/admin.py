# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The admin port, on 127.0.0.1: /live, /ready, /metrics, /debug/cache."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from tokenspeed.front.errors import EngineGone

if TYPE_CHECKING:
    from tokenspeed.front.engine_client import EngineClient
    from tokenspeed.observe.metrics import MetricsPage

_LEDGER_TIMEOUT_S = 5.0


class AdminPort:
    """Open from the start, so that loading can be watched.

    Attributes:
        serving: set once requests are accepted.
        draining: set once they are not any more, because the server ends.
    """

    def __init__(self, client: EngineClient, metrics: MetricsPage) -> None:
        self.serving = False
        self.draining = False
        self._client = client
        self._metrics = metrics

    async def start(self, port: int) -> tuple[web.AppRunner, int]:
        """Listen; 0 takes a free port. Returns (for cleanup, the port)."""
        app = web.Application()
        app.router.add_get("/live", self._live)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._prometheus)
        app.router.add_get("/debug/cache", self._cache)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner, runner.addresses[0][1]

    async def _live(self, request: web.Request) -> web.Response:
        if self._client.gone is not None:
            return web.Response(status=503, text=f"{self._client.gone}\n")
        if self._client.stalled:
            return web.Response(
                status=503,
                text=f"the engine has {self._client.alive} sequences and has said nothing for "
                f"{self._client.silent_s:.0f} s\n",
            )
        return web.Response(text="ok\n")

    async def _ready(self, request: web.Request) -> web.Response:
        if self._client.gone is not None:
            return web.Response(status=503, text=f"{self._client.gone}\n")
        if self.draining:
            return web.Response(status=503, text="shutting down\n")
        if self.serving:
            return web.Response(text="ready\n")
        loading = self._client.loading
        percent = 100 * loading.bytes_done // (loading.bytes_total or 1) if loading else 0
        body = {
            "status": f"loading {percent}%",
            "phase": loading.phase if loading else "starting",
            "bytes_done": loading.bytes_done if loading else 0,
            "bytes_total": loading.bytes_total if loading else 0,
        }
        return web.json_response(body, status=503)

    async def _prometheus(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.text(),
            headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4},
        )

    async def _cache(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(_LEDGER_TIMEOUT_S):
                await self._client.wait_ready()
                ledger = await self._client.ledger()
        except (EngineGone, TimeoutError) as error:
            cause = str(error) or f"the engine did not answer within {_LEDGER_TIMEOUT_S:g} s"
            return web.json_response({"error": cause}, status=503)
        return web.json_response(msgspec.structs.asdict(ledger))
