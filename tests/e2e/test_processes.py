# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Processes of a server: how fast they start, what they import, and that they end together."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from real_server import wait_for
from tokenspeed.bench.served import served

MODEL = "SmolLM2-135M-Instruct"


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def hello(url: str) -> str:
    messages: Any = [{"role": "user", "content": "Hello"}]
    with client_of(url) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=8, temperature=0
        )
    return str(answer.choices[0].message.content)


@dataclass
class Life:
    """A server from its start to Ctrl-C in the middle of a stream, every import of every process
    logged by the interpreter itself."""

    first_token_s: float
    start: list[str]
    output: str
    code: int | None
    family: list[psutil.Process]


def port_8000_taken() -> AbstractContextManager[object]:
    """By us, or by somebody else who may leave it at any time."""
    try:
        return socket.create_server(("127.0.0.1", 8000))
    except OSError:
        return nullcontext()


@pytest.fixture(scope="module")
def life(demo_folder: Path) -> Life:
    begin = time.monotonic()
    with pytest.MonkeyPatch.context() as patch, port_8000_taken():
        patch.setenv("PYTHONPROFILEIMPORTTIME", "1")
        with served(str(demo_folder)) as running, client_of(running.url) as client:
            start = [line for line in running.output if not line.startswith("import time:")]
            assert hello(running.url)
            first_token_s = time.monotonic() - begin
            family = psutil.Process(running.process.pid).children(recursive=True)
            stream = client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Count to one thousand."}],
                max_tokens=2000,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for _ in range(3):
                next(stream)
    return Life(first_token_s, start, "".join(running.output), running.process.returncode, family)


def test_first_token_comes_soon(life: Life) -> None:
    """5 to 7 s on an idle machine; the bound is for one that others use."""
    assert life.first_token_s <= 30
    assert "".join(life.start).count("http://") == 1, "the curl line holds the only URL"
    assert life.start[-1].startswith("curl http://127.0.0.1:")


def test_the_port_and_that_it_is_another_one_are_said(life: Life) -> None:
    port = life.start[-1].split("/")[2].partition(":")[2]
    assert f" at 127.0.0.1:{port} (8000 is in use); admin port " in life.start[-2]


def test_front_and_engine_do_not_import_transformers(life: Life) -> None:
    imported = set(re.findall(r"^import time:.*\|\s+([\w.]+)$", life.output, re.M))
    assert {"torch", "tokenspeed.engine.loop", "tokenspeed.front.server"} <= imported
    assert not {name for name in imported if name.partition(".")[0] == "transformers"}


def test_ctrl_c_in_the_middle_of_work_ends_in_order(life: Life) -> None:
    assert life.code == 0
    assert "\nstopped\n" in life.output
    assert len(life.family) == 3
    assert not psutil.wait_procs(life.family, timeout=1)[1]
    assert "terminate called" not in life.output
    assert "Traceback" not in life.output


@pytest.mark.parametrize("victim", ["supervisor", "engine"])
def test_no_process_outlives_a_kill(demo_folder: Path, victim: str) -> None:
    with served(str(demo_folder)) as server:
        parent = psutil.Process(server.process.pid)
        children = parent.children(recursive=True)
        assert len(children) == 3
        engine = next(p for p in children if "tokenspeed.engine" in p.cmdline())
        os.kill((parent if victim == "supervisor" else engine).pid, 9)
        code = server.process.wait(10)
        assert not psutil.wait_procs(children, timeout=10)[1]
    if victim == "engine":
        last_words = "".join(server.output).rpartition("ts serve: ")[2]
        assert last_words.startswith("engine failed: killed by SIGKILL")
        assert code == 1


def test_a_broken_checkpoint_is_said_in_one_piece(demo_folder: Path, tmp_path: Path) -> None:
    """What an operator can mend comes without a traceback, and last."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in demo_folder.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    command = [str(Path(sys.executable).parent / "ts"), "serve", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    output = run.stdout + run.stderr
    assert run.returncode == 1
    assert "Traceback" not in output
    assert "model.safetensors" in output.rpartition("ts serve: ")[2]


def ask(url: str, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    return httpx.post(f"{url}/v1/chat/completions", json=body | fields, timeout=60)


def stream_of(url: str, max_tokens: int, begun: threading.Event) -> str:
    """All that a stream says, to its end."""
    messages = [{"role": "user", "content": "Count to one thousand."}]
    body = {"model": MODEL, "messages": messages, "stream": True, "ignore_eos": True}
    said = ""
    with httpx.stream(
        "POST",
        f"{url}/v1/chat/completions",
        json=body | {"max_tokens": max_tokens},
        timeout=60,
    ) as answer:
        for piece in answer.iter_text():
            said += piece
            begun.set()
    return said


def events_of(said: str) -> list[dict[str, Any]]:
    """The events of a whole stream, without the one that ends it. What a model says may hold any
    word, so an error is known by its event, not by its text."""
    lines = [line.removeprefix("data: ") for line in said.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_killed_engine_comes_back_and_sigterm_drains(demo_folder: Path) -> None:
    """Open streams hear why; new requests get 503 until the restart has it back."""
    with (
        served(str(demo_folder), ["--restarts", "1"]) as server,
        ThreadPoolExecutor() as clients,
    ):
        family = psutil.Process(server.process.pid).children()
        engine = next(p for p in family if "tokenspeed.engine" in p.cmdline())
        begun = threading.Event()
        stream = clients.submit(stream_of, server.url, 2000, begun)
        assert begun.wait(20)
        engine.kill()
        said = stream.result(10)
        assert "Stream error: the engine is gone: killed by SIGKILL" in said
        assert said.rstrip().endswith("data: [DONE]")

        killed = time.monotonic()
        statuses = [ask(server.url).status_code]
        while statuses[-1] != 200:
            assert time.monotonic() - killed < 60, "the engine does not come back"
            time.sleep(0.2)
            statuses.append(ask(server.url).status_code)
        assert set(statuses[:-1]) == {503}
        assert "restart 1 of 1: engine and front" in "".join(server.output)

        begun = threading.Event()
        stream = clients.submit(stream_of, server.url, 80, begun)
        assert begun.wait(20)
        server.process.terminate()
        wait_for(lambda: ask(server.url).status_code == 503, 10)
        assert "the server is shutting down" in ask(server.url).text
        said = stream.result(20)
        assert '"finish_reason":"length"' in said
        assert not any("error" in event for event in events_of(said)), said
        assert server.process.wait(10) == 0
    assert server.output[-1] == "stopped\n"
