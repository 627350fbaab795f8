# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Priority and salt in x-request-id, through the whole chain, on a server that insists on salts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenspeed.bench.served import served

MODEL = "SmolLM2-135M-Instruct"
LAW = (Path(__file__).resolve().parent.parent / "data" / "constitution.txt").read_text()


@pytest.fixture(scope="module")
def one_place(demo_folder: Path, server_type: Any) -> Iterator[Any]:
    """A server that runs one request at a time."""
    arguments = ["--isolate-tenants", "--max-num-seqs", "1", "--threads", "2"]
    with served(str(demo_folder), arguments) as process:
        yield server_type(process)


@pytest.fixture
def http(one_place: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=one_place.url, timeout=60) as client:
        yield client


def ask(http: httpx.Client, header: str | None, prompt: str, path: str = "completions") -> Any:
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 2, "temperature": 0}
    body |= {
        "completions": {"prompt": prompt},
        "chat/completions": {"messages": [{"role": "user", "content": prompt}]},
    }[path]
    return http.post(f"/v1/{path}", json=body, headers={"x-request-id": header} if header else {})


def cached(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_salts_share_nothing(http: httpx.Client, path: str) -> None:
    """Each finds its own, whoever asked the same in between, and in whatever field order."""
    prompt = f"Salts, {path}. {LAW[:1000]}"
    assert cached(ask(http, "s=acme,1", prompt, path)) < 64, "the template may be known"
    assert cached(ask(http, "s=acme,2", prompt, path)) > 128
    assert cached(ask(http, "p=3,s=other,3", prompt, path)) < 64
    assert cached(ask(http, "s=other,p=-3,4", prompt, path)) > 128
    assert cached(ask(http, "s=acme,", prompt, path)) > 128


def test_what_is_wrong_is_a_400_that_says_so(http: httpx.Client) -> None:
    for header, text in (
        (None, "salt is None, but must be given"),
        ("p=5,mine", "--isolate-tenants"),
        ("p=abc,s=a,mine", "is 'abc', but must be an integer from -100 to 100"),
        ("p=9999,s=a,mine", "is '9999', but must be an integer from -100 to 100"),
        ("s=a", "followed by a comma"),
        ("s=a b,mine", "salt is None"),  # the gateway replaces an id with a space
    ):
        answer = ask(http, header, "Hello")
        assert answer.status_code == 400, header
        assert text in answer.json()["error"]["message"], header


async def test_priority_goes_first(one_place: Any) -> None:
    """One runs, six wait: those of high priority go first, though they came last."""
    ends: list[str] = []

    async def complete(http: httpx.AsyncClient, header: str, tokens: int) -> None:
        body = {"model": MODEL, "prompt": header, "max_tokens": tokens, "ignore_eos": True}
        answer = await http.post("/v1/completions", json=body, headers={"x-request-id": header})
        assert answer.status_code == 200, answer.text
        ends.append(header[:4])

    async def until_waiting(count: int) -> None:
        async with asyncio.timeout(20):
            while one_place.metric("waiting_sequences") != count:
                await asyncio.sleep(0.01)

    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=one_place.url, timeout=60, limits=limits) as http,
        asyncio.TaskGroup() as clients,
    ):
        clients.create_task(complete(http, "p=0,s=a,first", 120))
        while one_place.metric("running_sequences") != 1:
            await asyncio.sleep(0.01)
        for number in range(3):
            clients.create_task(complete(http, f"p=-9,s=a,{number}", 2))
        await until_waiting(3)
        for number in range(3):
            clients.create_task(complete(http, f"p=90,s=a,{number}", 2))
        await until_waiting(6)
    assert ends == ["p=0,", *["p=90"] * 3, *["p=-9"] * 3]
