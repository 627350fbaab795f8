# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a launch is made of, and how to start only its engine.

The offline API and benchmarks use the engine without front and gateway:

    with private_ipc() as ipc:
        plan = plan_launch(engine_config, front_config, ipc)
        socket.bind(plan.ipc)                  # zmq PAIR; the engine connects
        with start_engine(plan) as engine:     # from the main thread
            while not engine.failure():        # or poll engine.pidfd together with the socket
                ...

The engine says EngineReady over the socket. Leaving the block stops it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.config import EngineConfig, FrontConfig
from tokenspeed.plugins.plan import PluginPlan

if TYPE_CHECKING:
    from tokenspeed.process.spawn import Child

ENGINE = "tokenspeed.engine"
FRONT = "tokenspeed.front"

_MAX_SOCKET_PATH = 107  # bytes: sizeof(sockaddr_un.sun_path) - 1


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that engine and front are told.

    Attributes:
        ipc: zmq address in a private folder; front (or offline API) binds, engine connects.
    """

    engine: EngineConfig
    front: FrontConfig
    plugins: PluginPlan
    ipc: str


@contextmanager
def private_ipc() -> Iterator[str]:
    """An address for the engine's socket in a folder that only this user can enter."""
    with tempfile.TemporaryDirectory(prefix="tokenspeed-", ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "engine")
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
            raise OSError(
                f"socket path {path} is longer than {_MAX_SOCKET_PATH} bytes; "
                "set TMPDIR to a shorter folder"
            )
        yield f"ipc://{path}"


def plan_launch(engine: EngineConfig, front: FrontConfig, ipc: str) -> LaunchPlan:
    """Resolve the plugins for a configuration. PluginError says what is wrong and what to do."""
    from tokenspeed.plugins.host import resolve_installed

    resolution = resolve_installed(platform=engine.platform, pins=engine.pins)
    return LaunchPlan(engine=engine, front=front, plugins=resolution.plan, ipc=ipc)


def start_engine(plan: LaunchPlan, log_level: str = "warning") -> Child:
    """Start the engine process alone. Its output goes to this process's stderr.

    Must be called from the main thread (RuntimeError otherwise): the kernel ends the engine when
    the thread that started it ends. Bind the socket at ``plan.ipc`` before or soon after.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "start_engine must be called from the main thread: the engine process "
            "dies with the thread that started it"
        )
    from tokenspeed.process.spawn import spawn

    return spawn("engine", ENGINE, msgspec.json.encode(plan), log_level=log_level)
