# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the published gateway carries of a request's fields, and what it drops.

A test here that fails after the gateway was updated is good news: the gateway carries more. Then
the field moves from DROPPED to CARRIED, or out of NARROWER, and its line goes from the table in
docs/gateway.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tokenizers import Tokenizer
from tokenspeed.front import proto
from tokenspeed.messages import Submit

from .conftest import Front
from .gateway import run_gateway

DOCS = Path(__file__).parents[3] / "docs" / "gateway.md"

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
ROUTES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
    COMPLETIONS: {"prompt": "hello", "max_tokens": 4},
    GENERATE: {"text": "hello", "sampling_params": {"max_new_tokens": 4}},
    RESPONSES: {"input": "hello", "max_output_tokens": 4},
    MESSAGES: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
}

Seen = Callable[[Submit], Any]


def sampling(name: str) -> Seen:
    return lambda submit: getattr(submit.sampling, name)


CARRIED: list[tuple[str, dict[str, Any], tuple[str, ...], Seen, Any]] = [
    # field, what is sent, on which routes, where it arrives, and as what
    ("frequency_penalty", {"frequency_penalty": 0.5}, (CHAT, COMPLETIONS, GENERATE),
     sampling("frequency_penalty"), 0.5),
    ("presence_penalty", {"presence_penalty": -0.5}, (CHAT, COMPLETIONS, GENERATE),
     sampling("presence_penalty"), -0.5),
    ("repetition_penalty", {"repetition_penalty": 1.5}, (CHAT, COMPLETIONS, GENERATE),
     sampling("repetition_penalty"), 1.5),
    ("min_p", {"min_p": 0.25}, (CHAT, COMPLETIONS, GENERATE), sampling("min_p"), 0.25),
    ("top_k", {"top_k": 7}, (CHAT, COMPLETIONS, GENERATE), sampling("top_k"), 7),
    ("stop_token_ids", {"stop_token_ids": [33]}, (CHAT, COMPLETIONS, GENERATE),
     lambda submit: 33 in submit.stop_ids, True),
    ("ignore_eos", {"ignore_eos": True}, (CHAT, COMPLETIONS, GENERATE),
     lambda submit: submit.stop_ids, []),
    ("seed", {"seed": 12}, (CHAT, COMPLETIONS), sampling("seed"), 12),
    ("sampling_seed", {"sampling_seed": 12}, (GENERATE,), sampling("seed"), 12),
    ("min_tokens", {"min_tokens": 2}, (COMPLETIONS,),
     lambda submit: bool(submit.sampling.biases), True),
    ("min_new_tokens", {"min_new_tokens": 2}, (GENERATE,),
     lambda submit: bool(submit.sampling.biases), True),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 3}, (CHAT,), sampling("logprobs"), 3),
]  # fmt: skip

ALL = (CHAT, COMPLETIONS, GENERATE)
DROPPED: list[tuple[str, dict[str, Any], tuple[str, ...], Callable[[Any], bool]]] = [
    # field, what is sent, on which routes, and whether the gateway's message has nothing of it
    ("logit_bias", {"logit_bias": {"5": 50.0}}, ALL, lambda sent: not sent.logit_bias),
    ("min_tokens", {"min_tokens": 2}, (CHAT,), lambda sent: not sent.min_new_tokens),
    ("skip_special_tokens", {"skip_special_tokens": False}, (CHAT,),
     lambda sent: bool(sent.skip_special_tokens)),
    ("structural_tag", {"structural_tag": "{}"}, ALL,
     lambda sent: not sent.HasField("structural_tag")),
    ("frequency_penalty", {"frequency_penalty": 0.5}, (RESPONSES,),
     lambda sent: not sent.frequency_penalty),
    ("presence_penalty", {"presence_penalty": 0.5}, (RESPONSES,),
     lambda sent: not sent.presence_penalty),
    ("custom_params", {"custom_params": {"priority": 3}}, ALL,
     lambda sent: not sent.HasField("custom_params")),
    ("temprature", {"temprature": 2}, (*ALL, MESSAGES), lambda sent: sent.temperature != 2),
]  # fmt: skip

OPENAI = (CHAT, COMPLETIONS, RESPONSES)
NARROWER: list[tuple[str, str, Any, Any, tuple[str, ...]]] = [
    # field, its range as the page has it, the last value that is taken, the next, on which routes
    ("n", "1 to 10", 10, 11, (CHAT,)),
    ("stop", "up to 4 strings", [*"abcd"], [*"abcde"], OPENAI),
    ("temperature", "0 to 2", 2, 2.1, OPENAI),
    ("temperature", "0 to 1", 1, 1.1, (MESSAGES,)),
    ("top_k", "-1, or from 1", -1, 0, OPENAI),
    ("top_k", "from 0", 0, -1, (MESSAGES,)),
    ("repetition_penalty", "0.01 to 2", 2, 2.1, OPENAI),
    ("seed", "0 to 2^63 - 1", 2**63 - 1, 2**63, (CHAT, COMPLETIONS)),
]


@dataclass
class Gateway:
    front: Front
    http: aiohttp.ClientSession

    async def post(self, route: str, fields: dict[str, Any]) -> Any:
        """The answer."""
        status, answer = await self.try_post(route, fields)
        assert status == 200, answer
        return answer

    async def try_post(self, route: str, fields: dict[str, Any]) -> tuple[int, Any]:
        """Of /generate, fields are sampling parameters."""
        body = json.loads(json.dumps({"model": "tiny", **ROUTES[route]}))
        (body["sampling_params"] if route == GENERATE else body).update(fields)
        async with self.http.post(route, json=body) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def gateway(front: Front) -> AsyncIterator[Gateway]:
    async with (
        run_gateway([front.port], "passthrough") as running,
        aiohttp.ClientSession(running.url) as http,
    ):
        yield Gateway(front, http)


async def test_what_arrives(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one test: the gateway takes longer to start than this."""
    for field, fields, routes, seen, expected in CARRIED:
        for route in routes:
            await gateway.post(route, fields)
            assert seen(gateway.front.engine.submits[-1]) == expected, (field, route)

    sent: list[Any] = []
    read = proto.sampling_params
    monkeypatch.setattr(
        proto, "sampling_params", lambda message: (sent.append(message), read(message))[1]
    )
    for field, fields, routes, has_nothing in DROPPED:
        for route in routes:
            await gateway.post(route, fields)
            assert has_nothing(sent[-1].sampling_params), (field, route)
    assert len(sent) == sum(len(routes) for _, _, routes, _ in DROPPED)


async def test_what_it_refuses_itself(gateway: Gateway) -> None:
    """What the front takes as well, over gRPC and on /generate, which passes it on."""
    submits = gateway.front.engine.submits
    for field, _, taken, refused, routes in NARROWER:
        for route in routes:
            await gateway.post(route, {field: taken})
            before = len(submits)
            status, answer = await gateway.try_post(route, {field: refused})
            assert (status, len(submits)) == (400, before), (field, route)
            assert "Failed to start generation" not in answer["error"]["message"]
        if field != "seed":  # its name is another one there
            await gateway.post(GENERATE, {field: refused})
    status, answer = await gateway.try_post(RESPONSES, {"temprature": 2})
    assert (status, "unknown field" in answer["error"]["message"]) == (400, True)


async def test_the_least_repetition_penalty(gateway: Gateway) -> None:
    """32 bits of it are a little less than 0.01."""
    for route in (CHAT, COMPLETIONS, GENERATE):
        await gateway.post(route, {"repetition_penalty": 0.01})
        assert gateway.front.engine.submits[-1].sampling.repetition_penalty == 0.01


async def test_logprobs_come_back(gateway: Gateway) -> None:
    asked = {"logprobs": True, "top_logprobs": 2}
    [choice] = (await gateway.post(CHAT, asked))["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 4
    assert [len(each["top_logprobs"]) for each in content] == [2] * 4
    assert all(each["logprob"] < 0 for each in content)
    assert [each["logprob"] for each in content[0]["top_logprobs"]] == [-1.0, -2.0]


async def test_logprobs_of_generate(gateway: Gateway) -> None:
    body = {"model": "tiny", "return_logprob": True, "top_logprobs_num": 2, **ROUTES[GENERATE]}
    async with gateway.http.post(GENERATE, json=body) as answer:
        [found] = await answer.json()
    pairs = [[-token / 8, token] for token in found["output_ids"]]
    assert found["meta_info"]["output_token_logprobs"] == pairs


async def test_responses_ask_for_no_logprobs(gateway: Gateway) -> None:
    """So how many there should be is refused, not ignored."""
    body = {"model": "tiny", "top_logprobs": 2, **ROUTES[RESPONSES]}
    async with gateway.http.post(RESPONSES, json=body) as answer:
        assert answer.status == 400
        assert "top_logprobs is 2, but must be 0 without logprobs" in await answer.text()


async def test_completions_lose_their_logprobs(gateway: Gateway) -> None:
    """They are asked of the engine, and do not come back."""
    [choice] = (await gateway.post(COMPLETIONS, {"logprobs": 2}))["choices"]
    assert gateway.front.engine.submits[-1].sampling.logprobs == 2
    assert not choice.get("logprobs")


async def test_it_cuts_at_a_stop_string_that_comes_too_early(
    gateway: Gateway, tokenizer: Tokenizer
) -> None:
    """We go on until there are enough tokens; the gateway shows what was before."""
    ids = tokenizer.encode("a fox jumps").ids
    gateway.front.engine.script = lambda submit: iter([[token] for token in ids])
    fields = {"stop": ["fox"], "min_tokens": len(ids), "max_tokens": len(ids)}
    answer = await gateway.post(COMPLETIONS, fields)
    assert answer["usage"]["completion_tokens"] == len(ids)
    assert answer["choices"][0]["text"] == "a "


def section(title: str) -> str:
    return DOCS.read_text().partition(f"## {title}")[2].partition("\n## ")[0]


def test_the_page_names_what_is_narrower() -> None:
    rows = re.findall(
        r"^\| `([a-z_]+)` \| ([^|]+) \| ([^|]+) \|", section("Narrower over HTTP"), re.MULTILINE
    )
    listed = [(field, span, set(re.findall(r"`(/[^`]+)`", routes))) for field, span, routes in rows]
    assert listed == [(field, span, set(routes)) for field, span, *_, routes in NARROWER]


def test_the_page_names_what_is_dropped() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| ([^|]+) \|", section("What the gateway drops"), re.M)
    listed = {field: set(re.findall(r"`(/[^`]+)`", routes)) for field, routes in rows}
    dropped = {field: set(routes) for field, _, routes, _ in DROPPED}
    assert listed == dropped | {"logprobs": {COMPLETIONS}}
