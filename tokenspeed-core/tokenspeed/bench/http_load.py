# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Streaming requests to a server that speaks the OpenAI API, at a rate or at a concurrency."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias

import aiohttp

from tokenspeed.address import no_api, no_models, unreachable
from tokenspeed.bench.answers import Answer
from tokenspeed.bench.prompts import random_text

Request: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

_DATA, _DONE = "data:", "[DONE]"
_ERROR_LENGTH = 200


@dataclass(frozen=True)
class Traffic:
    """What is sent.

    Attributes:
        rate: requests a second, at random times as of many independent users; None: ``concurrency``
            requests at once, each followed by the next.
        words: of a prompt; about as many tokens.
        output: tokens of each answer, whether the model would have stopped or not.
    """

    requests: int
    concurrency: int
    rate: float | None
    words: int
    output: int


@dataclass
class Outcome:
    """What came of it, in ``seconds`` from the first request to the last answer's end."""

    seconds: float = 0.0
    answers: list[Answer] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def good(self, ttft_s: float, itl_s: float) -> int:
        """Answers within both limits: of the first token, and of the mean time between tokens."""
        return sum(
            answer.ttft <= ttft_s and (answer.tpot is None or answer.tpot <= itl_s)
            for answer in self.answers
        )


class ServerError(Exception):
    """The server refused a request, or ended an answer early."""


async def drive(url: str, traffic: Traffic, progress: Callable[[str], None]) -> Outcome:
    """Send all requests and wait for all answers; a failed one is counted and not repeated.

    ServerError: not even one request before them is answered.
    """
    outcome = Outcome()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        try:
            model = await _model(session, url)
            await _ask(session, model, traffic)  # connects and warms up
        except aiohttp.ClientError as error:
            raise ServerError(unreachable(url, error)) from error
        start = time.perf_counter()

        async def one() -> None:
            try:
                outcome.answers.append(await _ask(session, model, traffic))
            except (aiohttp.ClientError, ServerError) as error:
                outcome.errors[f"{error}"[:_ERROR_LENGTH]] += 1
            done = len(outcome.answers) + outcome.errors.total()
            if done % max(1, traffic.requests // 10) == 0:
                progress(f"{done} of {traffic.requests} requests")

        if traffic.rate is None:
            await _at_once(one, traffic.requests, traffic.concurrency)
        else:
            await _at_rate(one, traffic.requests, traffic.rate)
        outcome.seconds = time.perf_counter() - start
    return outcome


async def _at_once(one: Request, requests: int, concurrency: int) -> None:
    left = iter(range(requests))

    async def user() -> None:
        for _ in left:
            await one()

    await asyncio.gather(*(user() for _ in range(min(requests, concurrency))))


async def _at_rate(one: Request, requests: int, rate: float) -> None:
    async with asyncio.TaskGroup() as group:
        due = time.perf_counter()
        for _ in range(requests):
            group.create_task(one())
            due += random.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))


async def _model(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get("/v1/models") as response:
        text = await response.text(errors="replace")
        if response.status != HTTPStatus.OK:
            raise ServerError(no_models(url, response.status, text[:_ERROR_LENGTH]))
    try:
        return str(json.loads(text)["data"][0]["id"])
    except IndexError as error:
        raise ServerError(f"{url} serves no model yet; try again when it is ready") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ServerError(no_api(url, "it names no model at /v1/models")) from error


async def _ask(session: aiohttp.ClientSession, model: str, traffic: Traffic) -> Answer:
    body = {
        "model": model,
        "prompt": random_text(traffic.words),
        "max_tokens": traffic.output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = Answer(time.perf_counter())
    async with session.post("/v1/completions", json=body) as response:
        if response.status != HTTPStatus.OK:
            raise ServerError(f"HTTP {response.status}: {await response.text()}")
        async for event in _events(response):
            _take(answer, event)
    if not answer.arrivals:
        raise ServerError("an answer without a token")
    return answer


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for raw in response.content:
        line = raw.decode().strip()
        if line.startswith(_DATA) and (data := line.removeprefix(_DATA).strip()) != _DONE:
            yield json.loads(data)


def _take(answer: Answer, event: dict[str, Any]) -> None:
    if error := event.get("error"):
        raise ServerError(f"{error}")
    choices, usage = event.get("choices"), event.get("usage")
    if isinstance(choices, list) and any(choice.get("text") for choice in choices):
        answer.arrivals.append(time.perf_counter())
        answer.tokens += 1  # until the usage says how many
    if isinstance(usage, dict):
        answer.tokens = usage["completion_tokens"]
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
