# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A mixed load on a server, and what its clients saw: their own clock, their own counts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import httpx
import openai

MODEL = "SmolLM2-135M-Instruct"
TOLD = "Explain in a few words what follows. The river rises in the mountains and ends in the sea. "


@dataclass
class Seen:
    """One request, as its client saw it.

    Attributes:
        status: of HTTP; 0 when the client left.
        first_s, total_s: from sending it to the first piece of the answer, and to its end.
        prompt_tokens, cached_tokens, output_tokens: as the API says.
    """

    status: int = 0
    first_s: float = 0.0
    total_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


async def streamed(client: openai.AsyncOpenAI, prompt: str, max_tokens: int, **more: Any) -> Seen:
    """A whole answer, piece by piece."""
    start, seen = time.monotonic(), Seen()
    pieces = await client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True, **more},
    )
    async for piece in pieces:
        if not seen.first_s and piece.choices:
            seen.first_s = time.monotonic() - start
        if piece.usage is not None:
            details = piece.usage.prompt_tokens_details
            seen.prompt_tokens = piece.usage.prompt_tokens
            seen.cached_tokens = (details.cached_tokens or 0) if details else 0
            seen.output_tokens = piece.usage.completion_tokens
    seen.status, seen.total_s = 200, time.monotonic() - start
    return seen


async def left(client: openai.AsyncOpenAI, prompt: str, after_s: float) -> Seen:
    """A client that does not wait for the end."""
    try:
        async with asyncio.timeout(after_s):
            await streamed(client, prompt, 200)
    except TimeoutError:
        return Seen()
    raise AssertionError("the answer was complete before the client left")


async def refused(url: str) -> Seen:
    """A request that the front refuses."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        body = {"model": MODEL, "prompt": "Hello", "max_tokens": 4, "repetition_penalty": 0.001}
        start = time.monotonic()
        answer = await http.post("/v1/completions", json=body)
        return Seen(status=answer.status_code, total_s=time.monotonic() - start)


async def mixed(client: openai.AsyncOpenAI, url: str) -> dict[str, list[Seen]]:
    """One after the other, then more than the pool holds, some of whom leave, then errors."""
    alone = [await streamed(client, TOLD * 3, 8) for _ in range(3)]  # the last two hit the first
    # 8 pages each at their end: three of them fill the pool, so it takes pages from somebody unless
    # they come seconds apart.
    together = [streamed(client, f"{number}. {TOLD}", 100) for number in range(6)]
    leavers = [left(client, f"No. {number}: {TOLD}", 0.4 + 0.1 * number) for number in range(3)]
    crowd, gone = await asyncio.gather(asyncio.gather(*together), asyncio.gather(*leavers))
    errors = [await refused(url) for _ in range(2)]
    return {"alone": alone, "together": list(crowd), "left": list(gone), "refused": errors}
