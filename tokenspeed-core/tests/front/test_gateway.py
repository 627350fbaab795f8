# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The published gateway in front of our service, as in a server."""

from __future__ import annotations

import asyncio
import itertools
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import openai
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer
from tokenspeed.cli.chat import chat
from tokenspeed.front.caller import namespace_of
from tokenspeed.messages import Rejected, Submit

from .conftest import EOS, Front, eventually
from .gateway import run_gateway


@dataclass
class Server:
    front: Front
    url: str
    client: openai.AsyncOpenAI


@pytest.fixture
async def server(front: Front) -> AsyncIterator[Server]:
    async with (
        run_gateway([front.port], "passthrough") as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Server(front, gateway.url, client)


def say(tokenizer: Tokenizer, text: str, chunk: int = 1, *, end: bool = True) -> Any:
    """A script that answers with a text, some tokens a step."""
    ids = [*tokenizer.encode(text).ids, *([EOS] if end else [])]

    def script(submit: Submit) -> Iterator[list[int]]:
        for start in range(0, len(ids), chunk):
            yield ids[start : start + chunk]
        yield from itertools.repeat([10])

    return script


MESSAGES: Any = [{"role": "user", "content": "hello"}]


async def ask(server: Server, **options: Any) -> Any:
    return await server.client.chat.completions.create(model="tiny", messages=MESSAGES, **options)


async def streamed(server: Server, **options: Any) -> tuple[str, str | None]:
    text, reason = "", None
    async for event in await ask(server, stream=True, **options):
        for choice in event.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason


async def test_answers(server: Server, tokenizer: Tokenizer) -> None:
    """One gateway for all: starting it takes longer than all of these."""
    engine = server.front.engine
    engine.script = say(tokenizer, "hello wörld 🙂")
    whole = await ask(server)
    assert whole.choices[0].message.content == "hello wörld 🙂"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.prompt_tokens_details.cached_tokens == 3
    assert whole.usage.completion_tokens == len(tokenizer.encode("hello wörld 🙂").ids) + 1
    assert engine.submits[-1].sampling.top_k == 40, "the model's default reaches the engine"
    assert engine.submits[-1].sampling.repetition_penalty == pytest.approx(1.3)
    assert await streamed(server) == ("hello wörld 🙂", "stop")

    assert (await ask(server, max_tokens=2)).choices[0].finish_reason == "length"
    several = await ask(server, n=3, max_tokens=3)
    assert [c.index for c in several.choices] == [0, 1, 2]

    completion = await server.client.completions.create(model="tiny", prompt="hello", stop=["ö"])
    assert completion.choices[0].text == "hello w"


async def test_stop_strings(server: Server, tokenizer: Tokenizer) -> None:
    """The gateway cuts the text; we must end the generation and deliver enough for the cut."""
    engine = server.front.engine
    engine.step_s = 0.002
    cases = [(["own fox"], "a quick br🙂"), (["fox", "🙂own"], "a quick br")]
    for chunk, (stop, expected) in itertools.product((1, 3, 100), cases):
        engine.script = say(tokenizer, "a quick br🙂own fox jumps", chunk, end=False)
        assert await streamed(server, stop=stop) == (expected, "stop")
        whole = (await ask(server, stop=stop)).choices[0]
        assert (whole.message.content, whole.finish_reason) == (expected, "stop")
        await eventually(lambda: engine.running == 0)


async def test_errors_reach_the_client(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match=r"repetition_penalty is 0\.00"):
        await ask(server, extra_body={"repetition_penalty": 0.001})
    with pytest.raises(openai.BadRequestError):
        await server.client.completions.create(model="tiny", prompt="a" * 300)
    with pytest.raises(openai.BadRequestError, match="json_schema"):
        await ask(server, response_format={"type": "json_object"})
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await ask(server, temperature=-1)
    server.front.engine.reject = Rejected(0, "never_fits", 70, 64)
    with pytest.raises(openai.BadRequestError, match="needs 70, 64 available"):
        await ask(server, stream=True)
    server.front.engine.reject = None
    server.front.engine.fail = "NaN in the logits"
    with pytest.raises(openai.InternalServerError, match="NaN in the logits"):
        await ask(server, stream=True)


async def test_the_one_header_that_is_passed_on(server: Server) -> None:
    """On every route, for each prompt of a list; an id that the gateway replaces says nothing."""
    engine, header = server.front.engine, "p=-7,s=acme,mine"
    routes: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
        "/v1/completions": {"prompt": ["hello", "ab"], "max_tokens": 1},
        "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
        "/v1/responses": {"input": "hello", "max_output_tokens": 1},
        "/generate": {"text": "hello", "sampling_params": {"max_new_tokens": 1}},
    }
    async with aiohttp.ClientSession(server.url) as http:

        async def post(route: str, **headers: str) -> tuple[int, str]:
            body = {"model": "tiny", **routes[route]}
            async with http.post(route, json=body, headers=headers) as answer:
                return answer.status, await answer.text()

        for route in routes:
            assert (await post(route, **{"x-request-id": header}))[0] == 200
            assert (await post(route, **{"x-correlation-id": header}))[0] == 200
        assert len(engine.submits) == 2 * (len(routes) + 1)
        assert {(s.priority, s.namespace) for s in engine.submits} == {(-7, namespace_of("acme"))}
        engine.submits.clear()
        for replaced in ("s=acme, mine", "s=acme," + "x" * 128):
            assert (await post("/generate", **{"x-request-id": replaced}))[0] == 200
        assert {s.namespace for s in engine.submits} == {0}
        status, text = await post("/v1/completions", **{"x-request-id": "p=101,mine"})
        assert (status, "must be an integer from -100 to 100" in text) == (400, True)


async def test_client_leaves(server: Server) -> None:
    """Before the first token the gateway cancels the RPC; later in a stream it calls Abort."""
    engine = server.front.engine
    for stream, started in itertools.product((False, True), repeat=2):
        engine.frozen, engine.step_s = not started, 0.02
        body = {"model": "tiny", "messages": MESSAGES, "stream": stream}
        async with aiohttp.ClientSession() as http:
            post = asyncio.ensure_future(http.post(f"{server.url}/v1/chat/completions", json=body))
            await eventually(lambda: engine.running == 1)
            if started and stream:
                await (await post).content.readline()
            post.cancel()
        await eventually(lambda: engine.running == 0)
        assert server.front.client.alive == 0


async def test_interrupt_stops_the_answer_and_not_the_chat(
    server: Server, tokenizer: Tokenizer
) -> None:
    engine = server.front.engine
    engine.step_s = 0.01
    engine.script = lambda submit: itertools.repeat(tokenizer.encode("ab").ids)
    terminal, end = pty.openpty()
    # A shell that started this test in the background made interrupts be ignored.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from tokenspeed.cli.chat import chat; chat()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, server.url], stdin=end, stdout=end, stderr=end
    )
    os.close(end)
    try:
        assert "talking to tiny at http://127.0.0.1:" in await _expect(terminal, "> ")
        os.write(terminal, b"first\n")
        await _expect(terminal, "abab")
        process.send_signal(signal.SIGINT)
        await _expect(terminal, "(stopped)")
        await eventually(lambda: engine.running == 0)
        engine.script = say(tokenizer, "hello fox")
        os.write(terminal, b"second\n")
        await _expect(terminal, "hello fox")
        os.write(terminal, b"/exit\n")
        assert await asyncio.to_thread(process.wait, 5) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


async def _expect(terminal: int, text: str) -> str:
    """What is read up to there."""
    seen = ""
    while text not in seen:
        read = asyncio.to_thread(os.read, terminal, 4096)
        seen += (await asyncio.wait_for(read, 10)).decode()
    return seen


async def test_chat_command(server: Server, tokenizer: Tokenizer) -> None:
    server.front.engine.script = say(tokenizer, "ab hello")
    lines = "first\nsecond\n/reset\nthird\n"
    result = await asyncio.to_thread(CliRunner().invoke, chat, [server.url], input=lines)
    assert result.exit_code == 0, result.output
    assert result.stdout == "ab hello\n" * 3
    assert result.stderr == f"talking to tiny at {server.url}\n", "and no help without a terminal"
    prompts = [len(s.tokens) for s in server.front.engine.submits]
    assert prompts[0] < prompts[1] > prompts[2], "history grows until /reset"
    for arguments in (["--temperature", "-1"], ["--model", "nobody"]):
        result = await asyncio.to_thread(
            CliRunner().invoke, chat, [server.url, *arguments], input="first\n"
        )
        assert result.exit_code == 1
        assert "the server answered 4" in result.stderr
        assert result.stdout == ""
