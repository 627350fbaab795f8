# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""More than fits: 17 clients on 64 pages, some of whom leave; nobody is lost, nothing leaks.

Somebody must lose pages whatever the timing, because one client asks for ten long answers at once.
They reach the engine in one message, so they are admitted within a few steps of each other: each
takes at most 3 pages at first, and 10 * 3 + 9 in reserve are fewer than 64. Then they grow side by
side to more than 190 tokens, 12 pages each, of which at most 2 are of the prompt and shared: 2 +
10 * 10 = 102 pages. None of them leaves, so the pool is too small for them before the first one
ends. The other clients come once all ten run, and can only take more of it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenspeed.bench.served import served

MODEL = "SmolLM2-135M-Instruct"
PAGES = 64
ANSWERS = 10
ANSWER_TOKENS = 160
CLIENTS = 16
QUESTIONS = ("Tell me about rivers.", "Count from one to fifty.", "Write a poem about winter.")
ROUTE = "/v1/chat/completions"


@pytest.fixture
def small_server(demo_folder: Path, server_type: Any) -> Iterator[Any]:
    """Room for 1,024 tokens of KV."""
    arguments = ["--kv-pages", str(PAGES), "--page-size", "16", "--threads", "2"]
    with served(str(demo_folder), arguments) as process:
        yield server_type(process)


def request(question: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 1,
        **fields,
    }


async def ten_answers(http: httpx.AsyncClient, all_run: asyncio.Event) -> dict[str, Any]:
    """The long ones. Sets the event once each has begun; returns the usage."""
    options = {"n": ANSWERS, "stream": True, "stream_options": {"include_usage": True}, "seed": 1}
    body = request("Tell me a long story about a lighthouse.", ANSWER_TOKENS, **options)
    begun: set[int] = set()
    usage: dict[str, Any] = {}
    async with http.stream("POST", ROUTE, json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if not line or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, line
            begun |= {c["index"] for c in chunk["choices"] if c["delta"].get("content")}
            if len(begun) == ANSWERS:
                all_run.set()
            usage = chunk.get("usage") or usage
    return usage


async def one_client(http: httpx.AsyncClient, number: int, luck: random.Random) -> str:
    """Every second one streams, every second pair leaves early. Returns how it ended."""
    streams, leaves = number % 2 == 0, number % 4 < 2
    question = f"{number}. {luck.choice(QUESTIONS)}"
    body = request(question, luck.randint(16, 128), stream=streams, seed=number)
    if streams:
        return await streamed(http, body, leave_after=1 + number // 4 if leaves else None)
    try:
        async with asyncio.timeout(luck.uniform(0.05, 4) if leaves else None):
            return await whole(http, body)
    except TimeoutError:
        return "left"


async def whole(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    answer = await http.post(ROUTE, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == body["max_tokens"]
    return "answered"


async def streamed(http: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None) -> str:
    """``leave_after``: so many lines of the answer."""
    lines: list[str] = []
    async with http.stream("POST", ROUTE, json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line:
                lines.append(line)
            if len(lines) == leave_after:
                return "left"
    assert lines.pop() == "data: [DONE]"
    assert not any("error" in json.loads(line.removeprefix("data: ")) for line in lines)
    return "answered"


async def test_disconnects_under_memory_pressure(small_server: Any) -> None:
    luck = random.Random(7)
    all_run = asyncio.Event()
    async with (
        httpx.AsyncClient(base_url=small_server.url, timeout=300) as http,
        asyncio.TaskGroup() as group,
    ):
        long = group.create_task(ten_answers(http, all_run))
        await all_run.wait()
        others = [group.create_task(one_client(http, i, luck)) for i in range(CLIENTS)]
    assert 33 <= long.result()["prompt_tokens"] <= 48  # else the account above is wrong
    assert long.result()["completion_tokens"] == ANSWERS * ANSWER_TOKENS
    ends = [task.result() for task in others]
    assert all(end == "answered" for i, end in enumerate(ends) if i % 4 >= 2)
    assert set(ends) == {"answered", "left"}  # number 0 leaves after its first line
    ledger = small_server.settled_ledger()
    assert ledger["balanced"], ledger["detail"]
    assert ledger["active"] == ledger["in_transfer"] == 0
    assert ledger["total"] == PAGES == ledger["free"] + ledger["cached"]
    assert small_server.metric("retractions_total") > 0
    assert small_server.metric("running_sequences") == small_server.metric("waiting_sequences") == 0
    steps = small_server.metric("step_seconds_count")
    await asyncio.sleep(1)
    assert small_server.metric("step_seconds_count") == steps, "something still runs"
