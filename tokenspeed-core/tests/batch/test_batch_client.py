# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Whose fault a failure is: the line's, or the server's."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tokenspeed.batch import client as module
from tokenspeed.batch.client import FAULTS, Client, connected
from tokenspeed.batch.errors import BatchError
from tokenspeed.batch.lines import COMPLETIONS, URLS, Line, read_lines
from tokenspeed.batch.results import open_results
from tokenspeed.batch.run import Progress, run

SERVED = "served"


class Played:
    """A server that answers with the statuses that it was given, then 200."""

    def __init__(self, *statuses: int, ready: bool = True) -> None:
        self._statuses = iter(statuses)
        self.left = len(statuses)
        self.bodies: list[dict[str, Any]] = []
        self.ready = ready
        self.probes = 0

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": SERVED}]})

    async def complete(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer key"
        self.bodies.append(await request.json())
        if wait := self.bodies[-1].get("wait"):
            await asyncio.sleep(wait)
        status = self.bodies[-1].get("refused") or next(self._statuses, 200)
        self.left -= 1
        if time.monotonic() < self.bodies[-1].get("busy_until", 0):
            status = 429
        return web.json_response({"id": "cmpl-1", "status": status}, status=status)

    async def readiness(self, request: web.Request) -> web.Response:
        self.probes += 1
        return web.Response(status=200 if self.ready else 503)


@asynccontextmanager
async def client_of(played: Played, **options: Any) -> AsyncIterator[Client]:
    app = web.Application()
    app.router.add_get("/v1/models", played.models)
    app.router.add_get("/readiness", played.readiness)
    for url in URLS:
        app.router.add_post(url, played.complete)
    async with TestServer(app) as server:
        options = {"model": None, "any_model": False} | options
        async with connected(str(server.make_url("")), "key", **options) as client:
            yield client


def line(url: str = COMPLETIONS, /, **body: Any) -> Line:
    fields = {"custom_id": "a", "url": url, "body": {"prompt": "é"} | body}
    return Line(4, json.dumps(fields).encode(), 0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(module, "PATIENCE_S", 0.4)
    monkeypatch.setattr(module, "PROBE_S", 0.1)


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


@pytest.mark.parametrize("status", [401, 403])
async def test_a_wrong_key_ends_the_run_at_once(status: int) -> None:
    """It is no line's fault: the answer of none."""
    played = Played(status)
    async with client_of(played) as client:
        with pytest.raises(BatchError, match=rf"not accept the key: HTTP {status}: .*--api-key"):
            await client.answer(line())
    assert len(played.bodies) == 1


async def test_a_wrong_key_is_said_before_any_line_is_asked() -> None:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"error": "Invalid API key"}, status=401)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with TestServer(app) as server:
        with pytest.raises(BatchError, match=r"not accept the key: HTTP 401: .*Invalid API key"):
            async with connected(str(server.make_url("")), "no", model=None, any_model=False):
                pass


@pytest.mark.parametrize("status", [429, 502, 503])
@pytest.mark.parametrize("url", URLS)
async def test_a_line_that_alone_is_refused_is_in_error_after_its_time(
    monkeypatch: pytest.MonkeyPatch, url: str, status: int
) -> None:
    """Also when no other line is there to be answered."""
    monkeypatch.setitem(module.BUSY_S, HTTPStatus(status), 0.05)
    played = Played()
    async with client_of(played) as client:
        begin = time.monotonic()
        result = await client.answer(line(url, refused=status, model=SERVED, max_tokens=7))
        assert time.monotonic() - begin >= 0.05
    assert result.response is not None
    assert (result.good, result.response.status_code) == (False, status)
    others = [body for body in played.bodies if "refused" not in body]
    assert others == [{"model": SERVED, "max_tokens": 1} | module._SMALLEST[url]] * FAULTS
    assert "refused" not in played.bodies[-1], "not asked again after the last one"


async def test_a_run_goes_on_behind_a_line_that_alone_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In order, and the next run has nothing left to ask."""
    monkeypatch.setattr(module, "BUSY_S", dict.fromkeys(module.BUSY_S, 0.0))
    source, output, errors = (tmp_path / name for name in ("in", "out", "errors"))
    refused = line(refused=503).content or b""
    good = line().content or b""
    source.write_bytes(b"\n".join([good, refused, good, good]))
    for answered, asked in ((0, 4 + 2 * FAULTS - 1), (3, 0)):
        played = Played()
        with open_results(source, output, errors, overwrite=False) as results:
            assert (results.done.answered, results.done.complete) == (answered, answered > 0)
            async with client_of(played) as client:
                await run(read_lines(source), client.answer, results, 2, Progress())
        assert len(played.bodies) == asked
    [error] = map(json.loads, errors.read_text().splitlines())
    assert (error["id"], error["response"]["status_code"]) == ("line-2", 503)
    ids = [json.loads(row)["id"] for row in output.read_text().splitlines()]
    assert ids == ["line-1", "line-3", "line-4"]


async def test_a_server_that_restarts_refuses_no_line_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It refuses all for longer than a line's time; then is there, is away, and is there again."""
    monkeypatch.setattr(module, "BUSY_S", dict.fromkeys(module.BUSY_S, 0.0))
    refused_to_all = [503] * 10
    refused_alone = [503, 200] * (FAULTS - 1)
    played = Played(*refused_to_all, *refused_alone, 503, 503, *refused_alone, 200)
    async with client_of(played) as client:
        assert (await client.answer(line())).good
    assert played.left == 0


async def test_a_line_that_is_answered_was_not_refused_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failure in between is an answer: the refusals after it are counted anew."""
    monkeypatch.setattr(module, "BUSY_S", dict.fromkeys(module.BUSY_S, 0.0))
    played = Played(503, 200, 503, 200, 500, 503, 200, 503, 200, 200)
    async with client_of(played) as client:
        assert (await client.answer(line())).good
    assert played.left == 0


async def test_patience_counts_from_the_last_answer_of_any_line() -> None:
    """One is refused for longer than the patience, while others are answered."""
    async with client_of(Played()) as client:
        until = time.monotonic() + 3 * module.PATIENCE_S
        refused = asyncio.create_task(client.answer(line(busy_until=until)))
        while not refused.done():
            assert (await client.answer(line())).good
            await asyncio.sleep(0.02)
        assert (await refused).good
        assert time.monotonic() > until
        refused = asyncio.create_task(client.answer(line(busy_until=until + 60)))
        with pytest.raises(BatchError, match="does not answer"):  # nobody else asks
            await refused


async def test_a_line_that_took_long_leaves_the_whole_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its server lived all the while, then restarts."""
    played = Played(503, 503)
    async with client_of(played) as client:
        monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.05)
        assert (await client.answer(line(wait=3 * module.PATIENCE_S))).good
    assert len(played.bodies) == 3
    assert played.probes >= 6


async def test_a_silent_server_ends_the_run() -> None:
    played = Played(ready=False)
    async with client_of(played) as client:
        begin = time.monotonic()
        with pytest.raises(BatchError, match="does not answer for 0 s: HTTP 503 at /readiness"):
            await client.answer(line(wait=20))
        assert module.PATIENCE_S <= time.monotonic() - begin < 5


async def test_a_server_that_takes_connections_and_says_nothing_ends_the_run() -> None:
    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(nothing, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with connected(url, None, model="m", any_model=False) as client:
            with pytest.raises(BatchError, match=r"for 0 s: .*Timeout.* at /readiness"):
                await client.answer(line())
        with pytest.raises(BatchError, match=r"cannot reach .*: no answer in 0 s; start a server"):
            async with connected(url, None, model=None, any_model=False):
                pass


async def test_many_lines_in_flight_ask_for_one_sign_of_life() -> None:
    played = Played()
    async with client_of(played) as client:
        wait = 5 * module.PROBE_S
        answers = await asyncio.gather(*(client.answer(line(wait=wait)) for _ in range(50)))
    assert all(answer.good for answer in answers)
    assert played.probes <= 10


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
