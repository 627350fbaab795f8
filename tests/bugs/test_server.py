# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A real server of 64 pages and what clients do to it. Tests are named after ids in the README
beside them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from real_server import Server, get

MODEL = "SmolLM2-135M-Instruct"
POOL = 64 * 16
CHAT, TEXT, RAW = "/v1/chat/completions", "/v1/completions", "/generate"
HELLO = [{"role": "user", "content": "Hello"}]


def chat(content: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "temperature": 0, **fields}


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=120)


def at_rest(server: Server) -> None:
    """Nothing runs, and every page is free or cached."""
    ledger = server.settled_ledger()
    assert ledger["balanced"], ledger["detail"]
    assert ledger["active"] == ledger["in_transfer"] == 0
    assert ledger["free"] + ledger["cached"] == ledger["total"]


def streamed(server: Server, body: dict[str, Any]) -> str:
    """The text of a stream, put together."""
    text = ""
    with httpx.stream(
        "POST", server.url + CHAT, json=body | {"stream": True}, timeout=120
    ) as lines:
        for line in lines.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    text += choice["delta"].get("content") or ""
    return text


async def test_c22_a_reader_who_leaves_ends_the_work_at_once(small: Server) -> None:
    body = chat("Tell me a long story.", max_tokens=900, ignore_eos=True, stream=True)
    async with httpx.AsyncClient(base_url=small.url, timeout=120) as http:
        async with http.stream("POST", CHAT, json=body) as answer:
            async for line in answer.aiter_lines():
                if "content" in line:
                    break
            assert small.metric("running_sequences") == 1
        left = time.monotonic()
        while small.metric("running_sequences"):
            assert time.monotonic() - left < 10, "still decodes for nobody"
            await asyncio.sleep(0.05)
    at_rest(small)


async def test_c23_so_does_one_who_does_not_stream(small: Server) -> None:
    """Forty who give up after a moment, and the server is as before."""
    body = chat("Tell me a long story.", max_tokens=900, ignore_eos=True)

    async def give_up(http: httpx.AsyncClient, after: float) -> None:
        with pytest.raises(httpx.TimeoutException):
            await http.post(CHAT, json=body, timeout=after)

    async with httpx.AsyncClient(base_url=small.url) as http:
        await asyncio.gather(*(give_up(http, 0.3 + 0.02 * i) for i in range(40)))
    left = time.monotonic()
    while small.metric("running_sequences") or small.metric("waiting_sequences"):
        assert time.monotonic() - left < 10, "still decodes for nobody"
        await asyncio.sleep(0.05)
    at_rest(small)
    assert post(small, CHAT, chat("Hello", max_tokens=4)).status_code == 200


@pytest.mark.parametrize("ends", [["own"], ["e s", "xyzzy"]])
def test_c33_a_stop_string_over_tokens_is_never_seen(small: Server, ends: list[str]) -> None:
    """Streamed or not, the text is the whole one up to the first of them."""
    body = chat("Say: the quick brown fox jumps over the lazy dog. Then explain it.", max_tokens=40)
    whole = post(small, CHAT, body).json()["choices"][0]["message"]["content"]
    cuts = [whole.index(end) for end in ends if end in whole]
    wanted = whole[: min(cuts, default=len(whole))]
    assert streamed(small, body | {"stop": ends}) == wanted
    answer = post(small, CHAT, body | {"stop": ends}).json()["choices"][0]
    assert answer["message"]["content"] == wanted
    assert answer["finish_reason"] == ("stop" if cuts else "length")


@pytest.mark.parametrize("text", ["🌉🌉🎉🎉", "ďábel 日本語"])
def test_c34_characters_are_whole_in_every_piece(small: Server, text: str) -> None:
    body = chat(f"Repeat exactly: {text} {text} {text}", max_tokens=32)
    whole = post(small, CHAT, body).json()["choices"][0]["message"]["content"]
    pieces = streamed(small, body)
    assert pieces == whole
    assert "\ufffd" not in pieces[:-1]  # but for a character that max_tokens cut


def test_c39_the_format_text_is_no_grammar(small: Server) -> None:
    plain = post(small, CHAT, chat("Hello", max_tokens=8)).json()
    asked = post(small, CHAT, chat("Hello", max_tokens=8, response_format={"type": "text"})).json()
    assert asked["choices"][0]["message"] == plain["choices"][0]["message"]


def test_c46_what_a_template_refuses_is_a_400_with_its_words(small: Server) -> None:
    body = {"model": MODEL, "messages": HELLO * 2, "max_tokens": 4}
    answer = post(small, CHAT, body)
    assert answer.status_code == 400, answer.text
    assert "roles must take turns" in answer.text


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"logprobs": True, "top_logprobs": 1_000_000_000}),
        (CHAT, {"n": 5_000_000}),
        (TEXT, {"n": 5_000_000}),
        (TEXT, {"logprobs": 1_000_000_000}),
        (TEXT, {"best_of": 5_000_000}),
        (CHAT, {"max_tokens": 2**63}),
        (CHAT, {"seed": 2**80}),
        (CHAT, {"logit_bias": {"999999999": 5}}),
        (TEXT, {"logit_bias": {"-7": 5}}),
        (TEXT, {"prompt": ""}),
        (TEXT, {"prompt": []}),
        (TEXT, {"prompt": [-1]}),
        (RAW, {"input_ids": [-1]}),
        (RAW, {"input_ids": []}),
        (RAW, {"input_ids": [2**31]}),
        (RAW, {"input_ids": [1], "sampling_params": {"n": 5_000_000}}),
    ],
)
def test_c48_c50_c51_one_request_does_not_end_a_server(
    small: Server, path: str, fields: dict[str, Any]
) -> None:
    """It is refused, or what it asks beyond is not heard; the next one is answered."""
    base: dict[str, Any] = {"model": MODEL, "max_tokens": 2}
    base |= {CHAT: {"messages": HELLO}, TEXT: {"prompt": "Hello"}, RAW: {}}[path]
    if path == RAW:
        base = {"model": MODEL, "sampling_params": {"max_new_tokens": 2}}
    answer = post(small, path, base | fields)
    assert answer.status_code in (200, 400, 422), answer.text
    assert "Traceback" not in answer.text
    assert get(f"{small.process.admin_url}/live")
    assert post(small, CHAT, chat("Hello", max_tokens=2)).status_code == 200


@pytest.mark.parametrize("length", [POOL - 1, POOL, POOL + 1, 10 * POOL])
def test_c54_prompts_around_the_limit(small: Server, length: int) -> None:
    """All of it is read, or all of it is refused with both numbers."""
    body = {"model": MODEL, "input_ids": [7] * length, "sampling_params": {"max_new_tokens": 1}}
    answer = post(small, RAW, body)
    if length < POOL:
        assert answer.status_code == 200, answer.text
        found = answer.json()
        found = found[0] if isinstance(found, list) else found
        assert found["meta_info"]["prompt_tokens"] == length
    else:
        assert answer.status_code == 400, answer.text
        assert str(length) in answer.text
        assert str(POOL) in answer.text or str(POOL - 1) in answer.text
    at_rest(small)


def test_c56_equal_seeds_in_one_batch_are_equal(small: Server) -> None:
    """And the i-th of n answers is that of the seed plus i."""

    async def ask() -> list[str]:
        async with httpx.AsyncClient(base_url=small.url, timeout=120) as http:
            bodies = [chat("Tell me of rivers.", **drawn, seed=s) for s in (56, 56, 57)]
            bodies.append(chat("Tell me of rivers.", **drawn, seed=56, n=2))
            answers = await asyncio.gather(*(http.post(CHAT, json=body) for body in bodies))
        return [c["message"]["content"] for a in answers for c in a.json()["choices"]]

    drawn = {"temperature": 1.0, "max_tokens": 24}
    first, second, third, zeroth, next_one = asyncio.run(ask())
    assert first == second == zeroth
    assert first != third == next_one


async def test_c59_leaving_a_stream_with_logprobs(small: Server) -> None:
    body = chat("Count.", max_tokens=200, logprobs=True, top_logprobs=5, stream=True)

    async def leave(http: httpx.AsyncClient, after: int) -> None:
        async with http.stream("POST", CHAT, json=body) as answer:
            seen = 0
            async for line in answer.aiter_lines():
                seen += '"logprobs"' in line
                if seen >= after:
                    return

    async with httpx.AsyncClient(base_url=small.url, timeout=120) as http:
        for _ in range(2):
            await asyncio.gather(*(leave(http, 1 + i % 5) for i in range(10)))
    at_rest(small)
    answer = post(small, CHAT, chat("Count.", max_tokens=3, logprobs=True, top_logprobs=2)).json()
    assert len(answer["choices"][0]["logprobs"]["content"]) == 3
