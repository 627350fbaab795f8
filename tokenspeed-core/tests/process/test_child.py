# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A single child: its tie to the parent, its status, and the engine without a server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from tokenspeed.config import EngineConfig, FrontConfig
from tokenspeed.plugins.plan import PluginPlan
from tokenspeed.process import launch
from tokenspeed.process.launch import LaunchPlan, private_ipc, start_engine
from tokenspeed.process.spawn import spawn

PLAN = LaunchPlan(
    engine=EngineConfig(model="none"),
    front=FrontConfig(model="none", served_model_name="none"),
    plugins=PluginPlan.make("none", []),
    ipc="ipc:///none",
)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes the module ``scripted`` for a child to run."""

    def write(code: str) -> str:
        (tmp_path / "scripted.py").write_text(code)
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        monkeypatch.setenv("PYTHONPATH", path)
        return "scripted"

    return write


def test_a_child_whose_parent_is_gone_ends_at_once():
    program = (
        "from tokenspeed.process.lifeline import tie_to_parent; tie_to_parent(1); print('ran')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"parent process 1 is gone" in done.stderr


def test_a_module_started_by_hand_says_what_to_use():
    done = subprocess.run(
        [sys.executable, "-m", "tokenspeed.process.gateway_shim"], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"--parent" in done.stderr


def test_the_engine_cannot_be_started_from_a_thread_that_will_end():
    caught: list[BaseException] = []

    def work() -> None:
        try:
            start_engine(PLAN)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_the_plan_arrives_and_the_failure_comes_back(module, monkeypatch):
    """This plan cannot be proved: the process has other plugins, or no platform."""
    name = module("from tokenspeed.process.child import start_child\nstart_child()\n")
    monkeypatch.setattr(launch, "ENGINE", name)
    with start_engine(PLAN) as engine:
        engine.process.wait(10)
        failure = engine.failure()
    assert failure is not None
    assert "to do:" in failure


def test_a_large_plan_and_a_large_status_pass(module):
    name = module(
        "import sys\n"
        "from tokenspeed.process.child import Status, read_arguments\n"
        "arguments = read_arguments()\n"
        "plan = open(arguments.plan_fd, 'rb').read()\n"
        "status = Status(arguments.status_fd, arguments.note_fd)\n"
        "status.send({'event': 'ready', 'text': plan.decode()})\n"
        "sys.stdin.read()\n"
        "import time; time.sleep(60)\n"
    )
    plan = b"x" * 300_000
    with spawn("engine", name, plan) as child:
        while child.ready is None and child.failure() is None:
            child.read_status()
        assert child.failure() is None
        assert child.ready == {"event": "ready", "text": plan.decode()}
    assert child.ended()


def test_the_tail_of_the_output_is_kept(module, capfdbinary):
    name = module("for i in range(50): print('line', i)\nraise SystemExit(7)\n")
    with spawn("engine", name, b"", capture=True) as child:
        child.process.wait(10)
        lines = (child.failure() or "").splitlines()
    assert lines[0] == "ended by itself with exit code 7"
    assert lines[1:] == [f"line {i}" for i in range(30, 50)]


def test_captured_output_has_no_colours(module, capfdbinary):
    name = module(r"print('\x1b[2mnow\x1b[0m \x1b[1;33m WARN\x1b[0m that')")
    with spawn("engine", name, b"", capture=True) as child:
        child.process.wait(10)
        child.pump_output()
        assert child.tail() == ["now  WARN that"]
    assert capfdbinary.readouterr().err == b"now  WARN that\n"


def test_descriptors_are_given_back(module):
    name = module("pass\n")
    before = len(os.listdir("/proc/self/fd"))
    for capture in (True, False):
        with spawn("engine", name, b"", capture=capture) as child:
            child.process.wait(10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_socket_lies_in_a_private_folder(monkeypatch):
    with private_ipc() as ipc:
        folder = os.path.dirname(ipc.removeprefix("ipc://"))
        assert os.stat(folder).st_mode & 0o777 == 0o700
    assert not os.path.exists(folder)


def test_a_socket_path_that_is_too_long_says_what_to_set(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(OSError, match="set TMPDIR"), private_ipc():
        pass
