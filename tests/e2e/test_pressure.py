# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""More than fits: 32 clients on 64 pages, some of whom leave; nobody is lost, nothing leaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenspeed.bench.served import served

MODEL = "SmolLM2-135M-Instruct"
CLIENTS = 32
QUESTIONS = ("Tell me about rivers.", "Count from one to fifty.", "Write a poem about winter.")


@pytest.fixture
def small_server(demo_folder: Path, server_type: Any) -> Iterator[Any]:
    """Room for 1,024 tokens of KV."""
    arguments = ["--kv-pages", "64", "--page-size", "16", "--threads", "2"]
    with served(str(demo_folder), arguments) as process:
        yield server_type(process)


async def one_client(http: httpx.AsyncClient, number: int, luck: random.Random) -> str:
    """Ask, and in half of the cases leave early. Returns how it ended."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{number}. {luck.choice(QUESTIONS)}"}],
        "max_tokens": luck.randint(16, 128),
        "ignore_eos": True,
        "stream": luck.random() < 0.5,
        "temperature": 1,
        "seed": number,
    }
    leaves = luck.random() < 0.5
    try:
        async with asyncio.timeout(luck.uniform(0.05, 4) if leaves else None):
            return await (streamed if body["stream"] else whole)(http, body)
    except TimeoutError:
        return "left"


async def whole(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == body["max_tokens"]
    return "answered"


async def streamed(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert not any("error" in line for line in lines)
    return "answered"


async def test_disconnects_under_memory_pressure(small_server: Any) -> None:
    luck = random.Random(7)
    async with httpx.AsyncClient(base_url=small_server.url, timeout=300) as http:
        ends = await asyncio.gather(*(one_client(http, i, luck) for i in range(CLIENTS)))
    assert sorted(set(ends)) == ["answered", "left"]
    ledger = small_server.settled_ledger()
    assert ledger["balanced"], ledger["detail"]
    assert ledger["active"] == ledger["in_transfer"] == 0
    assert ledger["total"] == 64 == ledger["free"] + ledger["cached"]
    assert small_server.metric("retractions_total") > 0
    assert small_server.metric("running_sequences") == small_server.metric("waiting_sequences") == 0
    steps = small_server.metric("step_seconds_count")
    await asyncio.sleep(1)
    assert small_server.metric("step_seconds_count") == steps, "something still runs"
