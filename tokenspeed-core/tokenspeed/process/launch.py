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

import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from tokenspeed_sdk.model_files import read_object

from tokenspeed.config import EngineConfig, FrontConfig
from tokenspeed.plugins.plan import PluginPlan

if TYPE_CHECKING:
    from tokenspeed.plugins.choose.resolve import Resolution
    from tokenspeed.process.spawn import Child

_log = logging.getLogger(__name__)

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


def resolve_engine(engine: EngineConfig, architectures: Sequence[str] | None = None) -> Resolution:
    """Resolve the plugins for a configuration. PluginError says what is wrong and what to do.

    Args:
        architectures: of the model's config.json; given, a plugin for one of them must be there.
    """
    from tokenspeed.plugins.choose.lists import gather
    from tokenspeed.plugins.host import resolve_installed

    resolution = resolve_installed(
        platform=engine.platform,
        pins=engine.pins,
        lists=gather(engine.allow, engine.deny),
        architectures=architectures,
    )
    if engine.drafter is None:
        return resolution
    from tokenspeed.engine.drafters import check_drafter
    from tokenspeed.plugins.choose.drafters import with_drafter

    resolution = with_drafter(resolution, engine.drafter)
    check_drafter(engine, resolution.plan.of("drafter"))
    return resolution


def plan_launch(engine: EngineConfig, front: FrontConfig, ipc: str) -> LaunchPlan:
    """A plan with the plugins resolved as in ``resolve_engine``; what is broken is logged.

    The model's plugin must be there if its folder is; the engine says what the folder lacks.
    """
    config = Path(engine.model, "config.json")
    raw = read_object(config) if config.is_file() else {}
    resolution = resolve_engine(engine, raw.get("architectures"))
    for warning in resolution.warnings:
        _log.warning("%s", warning)
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
