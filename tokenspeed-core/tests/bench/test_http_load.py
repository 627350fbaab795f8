# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The HTTP client against a server that streams as slowly as it is told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tokenspeed.bench.http_load import Traffic, drive

FIRST_S, NEXT_S = 0.05, 0.02
OUTPUT = 3


class Stub:
    """Counts requests; refuses every fourth."""

    def __init__(self) -> None:
        self.came: list[float] = []
        self.open = self.most = 0
        self.bodies: list[dict[str, object]] = []

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.came.append(time.perf_counter())
        self.bodies.append(await request.json())
        if len(self.came) % 4 == 0:
            return web.Response(status=429, text="too many")
        self.open += 1
        self.most = max(self.most, self.open)
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(OUTPUT):
            await asyncio.sleep(NEXT_S if number else FIRST_S)
            await _send(response, {"choices": [{"text": "word"}]})
        usage = {"prompt_tokens": 7, "completion_tokens": OUTPUT}
        await _send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        self.open -= 1
        return response


async def _send(response: web.StreamResponse, event: dict[str, object]) -> None:
    await response.write(f"data: {json.dumps(event)}\n\n".encode())


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "stub"}]})


@pytest.fixture
async def stub() -> Stub:
    return Stub()


@pytest.fixture
async def url(stub: Stub) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/v1/models", _models)
    app.router.add_post("/v1/completions", stub.complete)
    async with TestServer(app) as server:
        yield str(server.make_url("/"))


async def test_at_a_concurrency(stub: Stub, url: str) -> None:
    outcome = await drive(url, Traffic(11, 3, None, 5, OUTPUT), lambda text: None)
    assert len(stub.came) == 12  # one to warm up
    assert outcome.errors == {"HTTP 429: too many": 3}
    assert len(outcome.answers) == 8
    assert stub.most <= 3
    for answer in outcome.answers:
        assert answer.ttft >= FIRST_S * 0.9
        assert len(answer.gaps) == OUTPUT - 1
        assert min(answer.gaps) >= NEXT_S * 0.5
        assert (answer.tokens, answer.prompt_tokens) == (OUTPUT, 7)
    body = stub.bodies[1]
    assert len(str(body["prompt"]).split()) == 5
    assert body["max_tokens"] == OUTPUT
    assert body["stream"] is body["ignore_eos"] is True
    assert stub.bodies[2]["prompt"] != body["prompt"]


async def test_at_a_rate_requests_do_not_wait_for_answers(stub: Stub, url: str) -> None:
    outcome = await drive(url, Traffic(12, 1, 400.0, 5, OUTPUT), lambda text: None)
    assert len(outcome.answers) + outcome.errors.total() == 12
    assert stub.most > 3
    assert outcome.seconds >= max(answer.ended for answer in outcome.answers) - stub.came[1] - 0.01
