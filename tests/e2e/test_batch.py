# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts batch with a real engine: in one go, killed and gone on, and with a server that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenspeed.bench.served import TS

LINES = 16
BAD, REFUSED = 5, 9  # lines, from 1
PROMPT = "The capital of France is"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Requests of both kinds, one line that is none, and one that the gateway refuses."""
    rows = [json.dumps(request(number)) for number in range(1, LINES + 1)]
    rows[BAD - 1] = "{"
    rows[REFUSED - 1] = json.dumps(request(REFUSED) | {"body": {"messages": 3}})
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(rows))
    return path


def request(number: int) -> dict[str, Any]:
    """Later ones are longer, so that a run can be met in its middle."""
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 4 + number}
    if number % 2:
        url, body["messages"] = (
            "/v1/chat/completions",
            [{"role": "user", "content": f"Hi {number}"}],
        )
    else:
        url, body["prompt"] = "/v1/completions", f"{number}. {PROMPT}"
        body["ignore_eos"] = True
    return {"custom_id": f"c{number}", "method": "POST", "url": url, "body": body}


def command(source: Path, output: Path, *options: str) -> list[str]:
    return [*TS, "batch", str(source), str(output), "--concurrency", "3", *options]


def own(folder: Path) -> tuple[str, ...]:
    return ("--model", str(folder), "--threads", "2", "--max-num-seqs", "2", "--kv-pages", "200")


def wait_for_lines(output: Path, count: int) -> None:
    """Until a run has written so many."""
    deadline = time.monotonic() + 120
    while not output.exists() or output.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def texts(output: Path) -> dict[str, str]:
    """custom_id -> text of the answer, in the file's order."""
    found = {}
    for row in map(json.loads, output.read_text().splitlines()):
        (choice,) = row["response"]["body"]["choices"]
        found[row["custom_id"]] = choice.get("text") or choice["message"]["content"]
    return found


def errors(output: Path) -> list[dict[str, Any]]:
    path = output.with_suffix(".errors.jsonl")
    return [json.loads(row) for row in path.read_text().splitlines()]


def test_killed_at_any_time_it_goes_on(demo_folder: Path, source: Path, server: Any) -> None:
    """What the two runs wrote is what one run against another server writes."""
    output = source.with_name("killed.jsonl")
    run = subprocess.Popen(command(source, output, *own(demo_folder)))
    try:
        wait_for_lines(output, 6)
        children = psutil.Process(run.pid).children(recursive=True)
        assert len(children) == 3  # engine, front, gateway
    finally:
        run.kill()
    assert run.wait() == -signal.SIGKILL
    assert not psutil.wait_procs(children, timeout=10)[1]
    before = output.read_bytes()
    assert before.count(b"\n") < LINES - 2
    with output.open("ab") as file:
        file.write(b'{"id":"line-')  # as if it had been killed in the middle of a line

    again = subprocess.run(
        command(source, output, *own(demo_folder)), capture_output=True, text=True, check=True
    )
    assert (
        again.stdout
        == f"{LINES - 2} answered: {output}; 2 in error: {output.with_suffix('')}"
        + (".errors.jsonl\n")
    )
    assert "going on behind line" in again.stderr
    assert output.read_bytes().startswith(before)

    whole = source.with_name("whole.jsonl")
    subprocess.run(command(source, whole, "--url", server.url), check=True, capture_output=True)
    assert [*texts(output)] == [f"c{n}" for n in range(1, LINES + 1) if n not in (BAD, REFUSED)]
    assert texts(output) == texts(whole)
    for each in (output, whole):
        bad, refused = errors(each)
        assert (bad["id"], bad["error"]["code"]) == (f"line-{BAD}", "invalid_line")
        assert refused["custom_id"] == f"c{REFUSED}"
        assert refused["response"]["status_code"] == 400


def test_a_killed_engine_ends_the_run_and_no_line_is_blamed(
    demo_folder: Path, source: Path
) -> None:
    output = source.with_name("out.jsonl")
    run = subprocess.Popen(
        command(source, output, *own(demo_folder)), stderr=subprocess.PIPE, text=True
    )
    wait_for_lines(output, 6)
    children = psutil.Process(run.pid).children(recursive=True)
    os.kill(next(p for p in children if "tokenspeed.engine" in p.cmdline()).pid, signal.SIGKILL)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "engine failed: killed by SIGKILL" in said
    assert "the same command goes on from there" in said
    assert [row["id"] for row in errors(output)] == [f"line-{BAD}", f"line-{REFUSED}"][
        : len(errors(output))
    ]


def test_ctrl_c_stops_it_in_order(demo_folder: Path, source: Path) -> None:
    output = source.with_name("out.jsonl")
    run = subprocess.Popen(
        command(source, output, *own(demo_folder)), stderr=subprocess.PIPE, text=True
    )
    wait_for_lines(output, 2)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert said.endswith("stopped; the same command goes on from there\n")
    assert output.read_bytes().endswith(b"\n")
