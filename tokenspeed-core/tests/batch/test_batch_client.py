# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Whose fault a failure is: the line's, or the server's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tokenspeed.batch import client as module
from tokenspeed.batch.client import FAULTS, Client, connected
from tokenspeed.batch.lines import Line
from tokenspeed.batch.results import BatchError

SERVED = "served"


class Played:
    """A server that answers with the statuses that it was given, then 200."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = iter(statuses)
        self.bodies: list[dict[str, Any]] = []

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": SERVED}]})

    async def complete(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer key"
        self.bodies.append(await request.json())
        status = next(self._statuses, 200)
        return web.json_response({"id": "cmpl-1", "status": status}, status=status)


@asynccontextmanager
async def client_of(played: Played, **options: Any) -> AsyncIterator[Client]:
    app = web.Application()
    app.router.add_get("/v1/models", played.models)
    app.router.add_post("/v1/completions", played.complete)
    async with TestServer(app) as server:
        options = {"model": None, "any_model": False} | options
        async with connected(str(server.make_url("")), "key", **options) as client:
            yield client


def line(**body: Any) -> Line:
    fields = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "é"} | body}
    return Line(4, json.dumps(fields).encode(), 0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)


async def test_an_answer_is_kept_whole() -> None:
    played = Played()
    async with client_of(played) as client:
        result = await client.answer(line(temperature=0))
    assert result.good
    assert (result.id, result.custom_id) == ("line-4", "a")
    assert result.response is not None
    assert result.response.request_id == "cmpl-1"
    assert result.response.body == {"id": "cmpl-1", "status": 200}
    assert played.bodies == [{"prompt": "é", "temperature": 0, "model": SERVED}]


@pytest.mark.parametrize(
    ("statuses", "status", "asked"),
    [
        ((400,), 400, 1),
        ((429, 503, 502), 200, 4),
        ((500,), 200, 2),
        ((500,) * FAULTS, 500, FAULTS),
        ((500, 429, 500, 500), 500, 4),
        ((504,), 504, 1),
    ],
)
async def test_only_what_the_line_did_is_its_answer(
    statuses: tuple[int, ...], status: int, asked: int
) -> None:
    played = Played(*statuses)
    async with client_of(played) as client:
        result = await client.answer(line())
    assert result.response is not None
    assert result.response.status_code == status
    assert result.good == (status == 200)
    assert len(played.bodies) == asked


async def test_a_server_that_stays_busy_ends_the_run() -> None:
    async with client_of(Played(*[503] * 10_000)) as client:
        with pytest.raises(BatchError, match="the server does not answer for 0 s: HTTP 503"):
            await client.answer(line())


async def test_a_server_that_went_away_ends_the_run() -> None:
    async with client_of(Played()) as client:
        pass
    async with connected("http://127.0.0.1:9", None, model="m", any_model=False) as client:
        with pytest.raises(BatchError, match="does not answer for 0 s: Client"):
            await client.answer(line())


async def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(BatchError, match=r"cannot reach http://127.0.0.1:9: .*ts serve FOLDER"):
        async with connected("http://127.0.0.1:9", None, model=None, any_model=False):
            pass


async def test_lines_for_other_models_are_not_answered_by_this_one() -> None:
    played = Played()
    async with client_of(played) as client:
        assert (await client.answer(line(model=SERVED))).good
        refused = await client.answer(line(model="gpt"))
    assert refused.error is not None
    assert (
        refused.error.message
        == "body.model is 'gpt', this run has 'served'; --any-model answers it"
    )
    async with client_of(played, any_model=True) as client:
        assert (await client.answer(line(model="gpt"))).good
    assert [body["model"] for body in played.bodies] == [SERVED, SERVED]


async def test_a_line_that_is_none_reaches_no_server() -> None:
    played = Played()
    async with client_of(played) as client:
        result = await client.answer(Line(2, b"x", 0))
    assert result.error is not None
    assert (result.custom_id, result.error.code, played.bodies) == (None, "invalid_line", [])
