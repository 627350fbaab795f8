# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The front as a process, started as the supervisor starts it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
import msgspec
import pytest
from smg_grpc_proto import tokenspeed_scheduler_pb2 as pb
from smg_grpc_proto import tokenspeed_scheduler_pb2_grpc as pb_grpc
from tokenspeed.config import EngineConfig, FrontConfig
from tokenspeed.messages import EngineLoading
from tokenspeed.plugins.errors import PluginError
from tokenspeed.plugins.host import resolve_installed
from tokenspeed.process.launch import FRONT, LaunchPlan, private_ipc
from tokenspeed.process.spawn import Child, spawn

from .fake_engine import FakeEngine


@pytest.fixture
def plan(model_folder: Path) -> Iterator[LaunchPlan]:
    with private_ipc() as ipc:
        try:
            plugins = resolve_installed().plan
        except PluginError as error:
            pytest.skip(f"no platform plugin is installed: {error.what}")
        yield LaunchPlan(
            engine=EngineConfig(model=str(model_folder)),
            front=FrontConfig(model=str(model_folder), served_model_name="tiny"),
            plugins=plugins,
            ipc=ipc,
        )


def event(child: Child, name: str) -> dict[str, object]:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        for status in _status_lines(child):
            if status["event"] == name:
                return status
        assert child.process.poll() is None, "the front ended"
        time.sleep(0.02)
    raise TimeoutError(name)


def _status_lines(child: Child) -> list[dict[str, object]]:
    try:
        return [json.loads(line) for line in os.read(child.status_fd, 65536).splitlines()]
    except BlockingIOError:
        return []


def test_life_of_a_front(plan: LaunchPlan) -> None:
    engine = FakeEngine(plan.ipc, hold=True)
    engine.loading.append(EngineLoading("weights", 1, 2))
    engine.start()
    with spawn("front", FRONT, msgspec.json.encode(plan)) as child:
        admin = f"http://127.0.0.1:{event(child, 'listening')['admin_port']}"
        time.sleep(0.2)
        with pytest.raises(HTTPError) as not_ready:
            urlopen(f"{admin}/ready")
        assert b"loading 50%" in not_ready.value.read()
        engine.go.set()
        ready = event(child, "ready")
        assert ready["observers"] == [], "none is installed here"
        with grpc.insecure_channel(f"127.0.0.1:{ready['grpc_port']}") as channel:
            stub = pb_grpc.TokenSpeedSchedulerStub(channel)
            request = pb.GenerateRequest(
                request_id="a",
                tokenized=pb.TokenizedInput(input_ids=[5]),
                sampling_params=pb.SamplingParams(max_new_tokens=2, stop=["x"]),
            )
            [answer] = stub.Generate(request)
        assert list(answer.complete.output_ids) == [6, 7]
        assert urlopen(f"{admin}/ready").read() == b"ready\n"
        maps = Path(f"/proc/{child.process.pid}/maps").read_text()
        assert "libtorch" not in maps, "the front has no use for torch"
        child.terminate()
        assert child.process.wait(10) == 0
    engine.die()


def test_engine_that_dies_while_loading(plan: LaunchPlan) -> None:
    engine = FakeEngine(plan.ipc, hold=True)
    engine.start()
    with spawn("front", FRONT, msgspec.json.encode(plan)) as child:
        event(child, "listening")
        time.sleep(0.2)
        engine.die()
        failed = event(child, "failed")
        assert "the engine is gone" in str(failed["error"])
        assert child.process.wait(10) != 0
