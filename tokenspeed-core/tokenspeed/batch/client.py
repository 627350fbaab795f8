# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Asks a server for one line at a time, as often as it takes.

Whose fault a failure is decides what becomes of it. A refusal of the request itself is the line's
answer. A server that is busy, starting or gone is asked again, and one that is silent is asked
whether it lives; when that lasts, or when it does not accept the key, the run ends, and a later one
goes on. Where it lasts for one line while the server answers others, it is the line's answer too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from tokenspeed.address import no_api, no_models, unreachable
from tokenspeed.batch.errors import BatchError
from tokenspeed.batch.lines import CHAT, COMPLETIONS, INVALID, BadLine, Line, Request, parse
from tokenspeed.batch.result import Response, Result, name_of

BUSY_S = {
    HTTPStatus.TOO_MANY_REQUESTS: 600.0,
    HTTPStatus.BAD_GATEWAY: 60.0,
    HTTPStatus.SERVICE_UNAVAILABLE: 60.0,
}
"""How long a line that such a status refuses is asked again without looking whether it is refused
alone. A queue may be full for long, and is so for a large request before it is for a small one."""

WRONG_KEY = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
PATIENCE_S = 120.0
"""How long a server may give no sign of life: no line is answered, and none that it has accepted is
being worked on."""

PROBE_S = 15.0
"""After so long without a sign one is asked for, which may take as long."""

FAULTS = 3
"""Tries of a line at which the server fails by itself, or refuses this line and answers another
request right after: a line may be the cause."""

_SMALLEST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "."}]},
    COMPLETIONS: {"prompt": "."},
}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0


@dataclass
class _Tries:
    """What came of a line so far.

    Attributes:
        failed: how often the server failed at it by itself.
        refused_since: when the server began to refuse it; None: it did not the last time.
        refused_alone: how often, in a row, the server answered another request right after.
    """

    failed: int = 0
    refused_since: float | None = None
    refused_alone: int = 0

    def forget_refusals(self) -> None:
        self.refused_since, self.refused_alone = None, 0


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
        tries, pause = _Tries(), _FIRST_PAUSE_S
        while True:
            try:
                response = await self._watched(request)
                if await self._settles(response, request, tries):
                    return response
                why = f"HTTP {response.status_code}: {_short(response.body)}"
            except (aiohttp.ClientError, OSError) as error:
                tries.forget_refusals()  # it is away for all lines
                why = f"{type(error).__name__}: {error}"
            self._check_patience(why)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _settles(self, response: Response, request: Request, tries: _Tries) -> bool:
        """Whether this is the line's answer, after all that came of it before."""
        status = response.status_code
        _check_key(status, response.body)
        if status in BUSY_S:
            return await self._is_refused_alone(BUSY_S[HTTPStatus(status)], request, tries)
        self._alive = time.monotonic()
        tries.forget_refusals()
        tries.failed += status == HTTPStatus.INTERNAL_SERVER_ERROR
        return status != HTTPStatus.INTERNAL_SERVER_ERROR or tries.failed == FAULTS

    async def _is_refused_alone(self, after: float, request: Request, tries: _Tries) -> bool:
        """Whether a server that refuses a line for so many seconds does so because of the line."""
        if tries.refused_since is None:
            tries.refused_since = time.monotonic()
        if time.monotonic() - tries.refused_since < after:
            return False
        answers = await self._answers_another(request)
        tries.refused_alone = tries.refused_alone + 1 if answers else 0
        return tries.refused_alone == FAULTS

    async def _answers_another(self, request: Request) -> bool:
        """Whether the server has an answer of one token for the same model. ``ClientError``."""
        body = {"model": request.body["model"], "max_tokens": 1} | _SMALLEST[request.url]
        limit = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with self._session.post(request.url, json=body, timeout=limit) as response:
            answers: bool = response.status == HTTPStatus.OK
        if answers:
            self._alive = time.monotonic()
        return answers

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
                raise BatchError(no_models(url, response.status, _short(body)))
            return str(body["data"][0]["id"])
    except (aiohttp.ClientError, OSError) as error:
        why = str(error) or f"no answer in {PATIENCE_S:.0f} s"
        raise BatchError(f"{unreachable(url, why)}, or give --model FOLDER") from error
    except IndexError as error:
        raise BatchError(f"{url} serves no model yet; try again when it is ready") from error
    except (LookupError, TypeError) as error:
        raise BatchError(no_api(url, "it names no model at /v1/models")) from error


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
