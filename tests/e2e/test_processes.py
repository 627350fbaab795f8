# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Processes of a server: how fast they start, what they import, and that they end together."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
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


def test_first_token_comes_soon(demo_folder: Path) -> None:
    """5 to 7 s on an idle machine; the bound is for one that others use."""
    start = time.monotonic()
    with served(str(demo_folder)) as server:
        output = "".join(server.output)
        assert hello(server.url)
        assert time.monotonic() - start <= 30
    assert output.count("http://") == 1, "the curl line holds the only URL"
    assert output.rstrip().splitlines()[-1].startswith("curl http://127.0.0.1:")


def test_front_and_engine_do_not_import_transformers(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every import of every process is logged by the interpreter itself."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with served(str(demo_folder)) as server:
        hello(server.url)
    imported = set(re.findall(r"^import time:.*\|\s+([\w.]+)$", "".join(server.output), re.M))
    assert {"torch", "tokenspeed.engine.loop", "tokenspeed.front.server"} <= imported
    assert not {name for name in imported if name.partition(".")[0] == "transformers"}


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


def test_ctrl_c_ends_in_order(demo_folder: Path) -> None:
    with served(str(demo_folder)) as server:
        family: list[Any] = psutil.Process(server.process.pid).children(recursive=True)
    assert server.process.returncode == 0
    assert not psutil.wait_procs(family, timeout=1)[1]
    assert "Traceback" not in "".join(server.output)


def test_ctrl_c_in_the_middle_of_work_is_clean(demo_folder: Path) -> None:
    with served(str(demo_folder)) as server, client_of(server.url) as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Count to one thousand."}],
            max_tokens=2000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for _ in range(3):
            next(stream)
    output = "".join(server.output)
    assert server.process.returncode == 0
    assert "terminate called" not in output
    assert "Traceback" not in output


def test_a_broken_checkpoint_is_said_in_one_piece(demo_folder: Path, tmp_path: Path) -> None:
    """What an operator can mend comes without a traceback, and last."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in demo_folder.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    command = [str(Path(sys.executable).parent / "ts"), "serve", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    output = run.stdout + run.stderr
    assert run.returncode == 1
    assert "Traceback" not in output
    assert "model.safetensors" in output.rpartition("ts serve: ")[2]
