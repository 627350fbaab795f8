# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Tool calls as models of the families write them, through the gateway, at any chunking."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import openai
import pytest
from tokenizers import Tokenizer
from tokenspeed.messages import Submit

from .conftest import Front, eventually, run_front
from .fake_engine import READY, FakeEngine
from .gateway import run_gateway
from .test_gateway import MESSAGES, say

LONG = msgspec.structs.replace(READY, max_model_len=2048)
CHUNKS = (1, 2, 3, 7, 1000)
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("get_weather", "write_file", "stop")
]


@dataclass(frozen=True)
class Recording:
    """What a model wrote, and what a client must get of it."""

    text: str
    content: str
    calls: tuple[tuple[str, Any], ...]


CODE = 'def f(x):\n    return {"a": [x, "<b>"]}  # caf\u00e9 \u65e5\u672c \U0001f642\n'


def hermes(name: str, arguments: Any) -> str:
    """Of Qwen, and of many others."""
    call = {"name": name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


WEATHER = ("get_weather", {"city": "Z\u00fcrich"})
FILE = ("write_file", {"path": "a/b.py", "text": CODE, "options": {"mode": [6, 4, 4], "new": True}})
RECORDINGS = {
    "one": Recording(hermes(*WEATHER), "", (WEATHER,)),
    "behind text": Recording("I will look.\n" + hermes(*WEATHER), "I will look.", (WEATHER,)),
    "code in a string": Recording(hermes(*FILE), "", (FILE,)),
    "without arguments": Recording(hermes("stop", {}), "", (("stop", {}),)),
    "in parallel": Recording(
        "\n".join((hermes(*WEATHER), hermes(*FILE), hermes("get_weather", {"city": "Oslo"}))),
        "",
        (WEATHER, FILE, ("get_weather", {"city": "Oslo"})),
    ),
    "none": Recording("It is 18 degrees: {warm}.", "It is 18 degrees: {warm}.", ()),
}


@dataclass(frozen=True)
class Server:
    front: Front
    client: openai.AsyncOpenAI


@pytest.fixture
def parser() -> Sequence[str]:
    """Flags of the gateway; a test may parametrise them."""
    return ("--parser", "symphony", "--tool-call-parser", "qwen2.5")


@pytest.fixture
async def server(address: str, model_folder: Path, parser: Sequence[str]) -> AsyncIterator[Server]:
    engine = FakeEngine(address, LONG)
    engine.start()
    async with (
        run_front(address, engine, model_folder, expected=LONG) as front,
        run_gateway([front.port], "passthrough", *parser) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Server(front, client)
    engine.die()


async def streamed(server: Server, **options: Any) -> tuple[str, list[tuple[str, Any]], str | None]:
    """Content, calls put together by their index, and the reason of the end."""
    content, reason = "", None
    ids: dict[int, str] = {}
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    events = await server.client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, stream=True, **options
    )
    async for event in events:
        for choice in event.choices:
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or ():
                if call.index not in arguments:
                    assert call.index == len(arguments), "indices rise one by one"
                    arguments[call.index] = ""
                assert call.function is not None
                if call.id:
                    assert ids.setdefault(call.index, call.id) == call.id
                if call.function.name:
                    assert call.index not in names, "a name comes once, and whole"
                    names[call.index] = call.function.name
                arguments[call.index] += call.function.arguments or ""
    assert len({*ids.values()}) == len(arguments), "each has an id of its own"
    return content, [(names[i], json.loads(text)) for i, text in arguments.items()], reason


async def test_calls_are_the_same_at_any_chunking(server: Server, tokenizer: Tokenizer) -> None:
    server.front.engine.step_s = 0.0005
    for name, recording in RECORDINGS.items():
        wanted = "tool_calls" if recording.calls else "stop"
        for chunk in CHUNKS:
            server.front.engine.script = say(tokenizer, recording.text, chunk)
            content, calls, reason = await streamed(server)
            assert calls == [*recording.calls], (name, chunk)
            assert (content.strip(), reason) == (recording.content, wanted), (name, chunk)
        whole = await server.client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=TOOLS
        )
        [choice] = whole.choices
        found = choice.message.tool_calls or []
        assert [(c.function.name, json.loads(c.function.arguments)) for c in found] == [
            *recording.calls
        ], name
        assert ((choice.message.content or "").strip(), choice.finish_reason) == (
            recording.content,
            wanted,
        ), name


async def test_streams_beside_each_other_keep_their_calls(
    server: Server, tokenizer: Tokenizer
) -> None:
    """32 at once, of which each gets what its seed says."""
    recordings = [*RECORDINGS.values()]

    def by_seed(submit: Submit) -> Iterator[list[int]]:
        seed = submit.sampling.seed
        script = say(tokenizer, recordings[seed % 6].text, CHUNKS[seed % 5])
        return cast("Iterator[list[int]]", script(submit))

    server.front.engine.script = by_seed
    answers = await asyncio.gather(*(streamed(server, seed=seed) for seed in range(32)))
    for seed, (content, calls, _) in enumerate(answers):
        recording = recordings[seed % 6]
        assert (content.strip(), calls) == (recording.content, [*recording.calls]), seed


async def test_a_stop_string_within_a_call_ends_the_stream(
    server: Server, tokenizer: Tokenizer
) -> None:
    """And the engine's work, whatever the gateway makes of half a call."""
    for chunk in CHUNKS:
        server.front.engine.script = say(tokenizer, RECORDINGS["behind text"].text, chunk)
        events = await server.client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=TOOLS, stream=True, stop=["arguments"]
        )
        text, reason = "", None
        async for event in events:
            for choice in event.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
        assert text.startswith("I will look.")
        assert "Z\u00fcrich" not in text
        assert reason is not None
        await eventually(lambda: server.front.engine.running == 0)


@pytest.mark.parametrize("parser", [("--tool-call-parser", "qwen")])
async def test_another_parser_loses_what_comes_in_one_piece(
    server: Server, tokenizer: Tokenizer
) -> None:
    """When this fails, a newer gateway has mended it: templates that think may take it, too."""
    for name, content, calls in (("behind text", "", 1), ("in parallel", "", 1)):
        server.front.engine.script = say(tokenizer, RECORDINGS[name].text, 1000)
        found = await streamed(server)
        assert (found[0].strip(), len(found[1])) == (content, calls), name
