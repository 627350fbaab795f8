# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Asks a server for one line at a time, as often as it takes.

Whose fault a failure is decides what becomes of it. A refusal of the request itself is the line's
answer. A server that is busy, starting or gone is asked again, and one that is silent is asked
whether it lives; when that lasts, or when it does not accept the key, the run ends, and a later one
goes on.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from tokenspeed.batch.errors import BatchError
from tokenspeed.batch.lines import INVALID, BadLine, Line, Request, parse
from tokenspeed.batch.result import Response, Result, name_of

BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE)
WRONG_KEY = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
PATIENCE_S = 120.0
"""How long a server may give no sign of life: no line is answered, and none that it has accepted is
being worked on."""

PROBE_S = 15.0
"""After so long without a sign one is asked for, which may take as long."""

FAULTS = 3
"""Tries of a line at which the server fails by itself: a line may be the cause."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0


class Client:
    """Answers lines.

    Attributes:
        model: the name that the server has for its model.
    """

    def __init__(self, session: aiohttp.ClientSession, model: str, any_model: bool) -> None:
        self.model = model
        self._session = session
        self._any_model = any_model
        self._alive = time.monotonic()  # the last sign of life
        self._probing: asyncio.Task[str | None] | None = None

    async def answer(self, line: Line) -> Result:
        """The line's result. BatchError: the server is gone, or does not accept the key."""
        request = parse(line)
        if isinstance(request, Request):
            request = self._with_model(request)
        if isinstance(request, BadLine):
            return Result.bad(line, request)
        return Result(name_of(line), request.custom_id, response=await self._ask(request))

    def _with_model(self, request: Request) -> Request | BadLine:
        asked = request.body.get("model")
        if asked is None or self._any_model:
            return Request(request.custom_id, request.url, request.body | {"model": self.model})
        if asked != self.model:
            why = f"body.model is {asked!r}, this run has {self.model!r}; --any-model answers it"
            return BadLine(request.custom_id, INVALID, why)
        return request

    async def _ask(self, request: Request) -> Response:
        faults, pause = 0, _FIRST_PAUSE_S
        while True:
            try:
                response = await self._watched(request)
                _check_key(response.status_code, response.body)
                if response.status_code not in BUSY:
                    self._alive = time.monotonic()
                    faults += response.status_code == HTTPStatus.INTERNAL_SERVER_ERROR
                    if response.status_code != HTTPStatus.INTERNAL_SERVER_ERROR or faults == FAULTS:
                        return response
                why = f"HTTP {response.status_code}: {_short(response.body)}"
            except (aiohttp.ClientError, OSError) as error:
                why = f"{type(error).__name__}: {error}"
            self._check_patience(why)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _watched(self, request: Request) -> Response:
        """What the server says, however long it takes, as long as it lives meanwhile."""
        asked = asyncio.create_task(self._post(request))
        try:
            while not (await asyncio.wait([asked], timeout=PROBE_S))[0]:
                await self._probe()
            return await asked
        finally:
            asked.cancel()

    async def _probe(self) -> None:
        """Ask for a sign of life, once for all lines, unless there was one just now."""
        if time.monotonic() - self._alive < PROBE_S:
            return
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._why_silent())
        why = await asyncio.shield(self._probing)
        if why is not None:
            self._check_patience(why)

    async def _why_silent(self) -> str | None:
        """None: it lives."""
        limit = aiohttp.ClientTimeout(total=PROBE_S)
        try:
            async with self._session.get("/readiness", timeout=limit) as response:
                if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    return f"HTTP {response.status} at /readiness"
        except (aiohttp.ClientError, OSError) as error:
            return f"{type(error).__name__} at /readiness"
        self._alive = time.monotonic()
        return None

    def _check_patience(self, why: str) -> None:
        if time.monotonic() - self._alive > PATIENCE_S:
            raise BatchError(f"the server does not answer for {PATIENCE_S:.0f} s: {why}")

    async def _post(self, request: Request) -> Response:
        async with self._session.post(request.url, json=request.body) as response:
            content = await response.read()
            body = _decoded(content)
            named = body.get("id") if isinstance(body, dict) else None
            return Response(response.status, named if isinstance(named, str) else None, body)


@asynccontextmanager
async def connected(
    url: str, api_key: str | None, *, model: str | None, any_model: bool
) -> AsyncIterator[Client]:
    """A client of a running server.

    Args:
        model: its name there; None: the first that the server names.

    Raises:
        BatchError: nothing answers there, or no model, or the key is wrong.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with aiohttp.ClientSession(
        url,
        headers=headers,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        json_serialize=lambda value: msgspec.json.encode(value).decode(),
    ) as session:
        yield Client(session, model or await _first_model(session, url), any_model)


async def _first_model(session: aiohttp.ClientSession, url: str) -> str:
    try:
        limit = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with session.get("/v1/models", timeout=limit) as response:
            body = _decoded(await response.read())
            _check_key(response.status, body)
            if response.status != HTTPStatus.OK:
                raise BatchError(f"{url} answers HTTP {response.status}: {_short(body)}")
            return str(body["data"][0]["id"])
    except (aiohttp.ClientError, OSError) as error:
        why = str(error) or f"no answer in {PATIENCE_S:.0f} s"
        raise BatchError(
            f"cannot reach {url}: {why}; start one with 'ts serve FOLDER', or give --model FOLDER"
        ) from error
    except (LookupError, TypeError) as error:
        raise BatchError(f"{url} names no model; try again when it is ready") from error


def _check_key(status: int, body: Any) -> None:
    """A key that is wrong is no line's fault, and is so for all of them."""
    if status in WRONG_KEY:
        raise BatchError(
            f"the server does not accept the key: HTTP {status}: {_short(body)}; give the right "
            "one with --api-key, or set TOKENSPEED_API_KEY"
        )


def _decoded(content: bytes) -> Any:
    """JSON, or the text as it is."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return content.decode(errors="replace")


def _short(body: Any) -> str:
    text = body if isinstance(body, str) else msgspec.json.encode(body).decode()
    return text[:200]
