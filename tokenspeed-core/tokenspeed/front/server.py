# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The front process, put together: socket to the engine, admin port, gRPC port, in this order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prometheus_client import disable_created_metrics

from tokenspeed.front.admin import AdminPort
from tokenspeed.front.engine_client import EngineClient
from tokenspeed.front.errors import EngineGone
from tokenspeed.front.grammars import Grammars
from tokenspeed.front.model_folder import ModelFolder
from tokenspeed.front.service import GrpcServer, SchedulerService
from tokenspeed.front.watchdog import warn_of_silence
from tokenspeed.observe.events import EventStream
from tokenspeed.observe.metrics import Metrics, MetricsPage
from tokenspeed.observe.usage_log import log_usage
from tokenspeed.process.failure import DRAIN, StartError

if TYPE_CHECKING:
    from tokenspeed.observe.observers import Observers
    from tokenspeed.process.launch import LaunchPlan

Report = Callable[[dict[str, Any]], None]
"""Tells the supervisor of an event."""
Told = Callable[[], str]
"""Why the engine ended, once the supervisor has said so; before, ""."""


async def serve(
    plan: LaunchPlan, observers: Observers, report: Report, told: Told | None = None
) -> None:
    """Serve until SIGTERM.

    Reports the events ``listening`` (the admin port is open) and ``ready`` (the gRPC port is open
    too; ``kernels`` and ``observers`` are rows of the start-up table). Nothing is served before the
    engine is ready: the gateway takes an open port for a worker. StartError when the engine ends
    while it loads.
    """
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):  # asked to end
        await _serve(plan, observers, report, told)


async def _serve(plan: LaunchPlan, observers: Observers, report: Report, told: Told | None) -> None:
    # When a counter began is noise here: all begin with the process.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    config = plan.front
    events = EventStream(config.served_model_name, token_ids=observers.token_ids)
    metrics = Metrics()
    events.add(metrics.observe)
    events.add(observers.observe)
    events.add(log_usage)
    kv_events = plan.engine.kv_events
    async with EngineClient(plan.ipc, events, kv_events=kv_events, told=told) as client:
        admin = AdminPort(client, MetricsPage(metrics, client, observers))
        runner, admin_port = await admin.start(config.admin_port)
        try:
            report({"event": "listening", "admin_port": admin_port})
            try:
                folder = ModelFolder(config.model)
                await asyncio.to_thread(lambda: folder.tokenizer)
            except (OSError, ValueError) as error:
                raise StartError(str(error)) from error
            try:
                ready = await client.wait_ready()
            except EngineGone as error:
                raise StartError(str(error)) from error
            async with AsyncExitStack() as stack:
                grammars = await stack.enter_async_context(
                    Grammars(plan.plugins, folder, ready.vocab_size)
                )
                service = SchedulerService(client, ready, folder, config, events, grammars)
                server = await stack.enter_async_context(GrpcServer(service, config.grpc_port))
                drain = _Drain(service, admin, config.drain_timeout, report)
                asyncio.get_running_loop().add_signal_handler(DRAIN, drain.ask)
                watch = asyncio.create_task(warn_of_silence(client))
                stack.callback(watch.cancel)
                admin.serving = True
                ports = {"grpc_port": server.port, "admin_port": admin_port}
                kernels = [asdict(choice) for choice in ready.kernels]
                wired = {"kernels": kernels, "observers": observers.table()}
                report({"event": "ready", **ports, **wired})
                await asyncio.get_running_loop().create_future()  # for ever
        finally:
            await runner.cleanup()


class _Drain:
    """What follows when the supervisor asks to take nothing new, and when it asks again, because
    the operator does not want to wait. Reports the event ``drained``."""

    def __init__(
        self, service: SchedulerService, admin: AdminPort, seconds: float, report: Report
    ) -> None:
        self._service = service
        self._admin = admin
        self._seconds = seconds
        self._report = report
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """The first time begins, each other one waits no longer."""
        if self._task is None:
            self._admin.draining = True
            self._task = asyncio.create_task(self._drain())
        else:
            self._service.hurry()

    async def _drain(self) -> None:
        await self._service.drain(self._seconds)
        self._report({"event": "drained"})
