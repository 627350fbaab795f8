# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The front process, put together: socket to the engine, admin port, gRPC port, in this order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tokenspeed.front.admin import AdminPort
from tokenspeed.front.engine_client import EngineClient
from tokenspeed.front.errors import EngineGone
from tokenspeed.front.metrics import Metrics
from tokenspeed.front.model_folder import ModelFolder
from tokenspeed.front.service import GrpcServer, SchedulerService
from tokenspeed.process.failure import StartError

if TYPE_CHECKING:
    from tokenspeed.config import FrontConfig


async def serve(config: FrontConfig, ipc: str, report: Callable[[dict[str, Any]], None]) -> None:
    """Serve until SIGTERM.

    Reports the events ``listening`` (the admin port is open) and ``ready`` (the gRPC port is open
    too). Nothing is served before the engine is ready: the gateway takes an open port for a worker.
    StartError when the engine ends while it loads.
    """
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):  # asked to end
        await _serve(config, ipc, report)


async def _serve(config: FrontConfig, ipc: str, report: Callable[[dict[str, Any]], None]) -> None:
    async with EngineClient(ipc) as client:
        metrics = Metrics(client)
        admin = AdminPort(client, metrics)
        runner, admin_port = await admin.start(config.admin_port)
        try:
            report({"event": "listening", "admin_port": admin_port})
            folder = ModelFolder(config.model)
            await asyncio.to_thread(lambda: folder.tokenizer)
            try:
                ready = await client.wait_ready()
            except EngineGone as error:
                raise StartError(str(error)) from error
            service = SchedulerService(client, ready, folder, config, metrics)
            async with GrpcServer(service, config.grpc_port) as server:
                admin.serving = True
                report({"event": "ready", "grpc_port": server.port, "admin_port": admin_port})
                await asyncio.get_running_loop().create_future()  # for ever
        finally:
            await runner.cleanup()
