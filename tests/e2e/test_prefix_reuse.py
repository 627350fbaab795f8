# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What was computed once is not computed again, seen from outside: ``cached_tokens``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai

MODEL = "SmolLM2-135M-Instruct"
PAGE = 16
DATA = Path(__file__).resolve().parent.parent / "data"


def law(characters: slice) -> str:
    return (DATA / "constitution.txt").read_text()[characters]


def test_each_turn_of_a_chat_is_served_from_the_last(client: openai.OpenAI) -> None:
    """Five turns of 400 tokens and more; at least 90 % of prompt and answer so far is a hit."""
    messages: list[Any] = [{"role": "user", "content": "Turn 0. Explain: " + law(slice(0, 1900))}]
    last_tokens = 0
    for turn in range(1, 6):
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=40, temperature=0
        )
        usage = answer.usage
        assert usage is not None
        assert usage.prompt_tokens >= 400
        if turn > 1:
            assert usage.prompt_tokens_details is not None
            assert usage.prompt_tokens_details.cached_tokens >= 0.9 * last_tokens, f"turn {turn}"
        last_tokens = usage.prompt_tokens + usage.completion_tokens
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        messages.append({"role": "user", "content": f"Turn {turn}. What does that mean?"})


async def test_a_twin_that_arrives_during_prefill_computes_nothing_twice(server: Any) -> None:
    """Every full page of the prompt comes from the first request, which still prefills it."""
    prompt = "Twins. " + law(slice(0, 9000))

    async def complete(client: openai.AsyncOpenAI) -> Any:
        return await client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=32, temperature=0
        )

    async with server.async_openai as client:
        computed = server.metric("step_seconds_count")
        first = asyncio.create_task(complete(client))
        while server.metric("step_seconds_count") < computed + 2:  # its second chunk is on the way
            # It has two more chunks and an answer to go, so its twin need not hurry.
            assert not first.done(), "the first request ended too early to be a twin"
            await asyncio.sleep(0.01)
        second = await complete(client)
        prompt_tokens = second.usage.prompt_tokens
        assert prompt_tokens > 1500
        full_pages = (prompt_tokens - 1) // PAGE * PAGE
        assert second.usage.prompt_tokens_details.cached_tokens == full_pages
        assert (await first).choices[0].text == second.choices[0].text
