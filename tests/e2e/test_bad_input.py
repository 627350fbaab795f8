# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Requests that are wrong get an answer that says so; the server and its neighbours go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import pytest
from smg_grpc_proto import tokenspeed_scheduler_pb2 as pb
from smg_grpc_proto import tokenspeed_scheduler_pb2_grpc as pb_grpc

MODEL = "SmolLM2-135M-Instruct"
HELLO = [{"role": "user", "content": "Hello"}]
VOCABULARY = 49152
CONTEXT = 8192


def chat(**fields: Any) -> tuple[str, bytes]:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 4, **fields}
    return "/v1/chat/completions", json.dumps(body).encode()


def completion(prompt: Any, **fields: Any) -> tuple[str, bytes]:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, **fields}
    return "/v1/completions", json.dumps(body).encode()


def generate(ids: list[int], **sampling: Any) -> tuple[str, bytes]:
    body = {"model": MODEL, "input_ids": ids, "sampling_params": {"max_new_tokens": 4, **sampling}}
    return "/generate", json.dumps(body).encode()


# name -> (request, status, what the answer must contain)
GATEWAY_JUDGES: dict[str, tuple[tuple[str, bytes], int, list[str]]] = {
    "temperature": (chat(temperature=-1), 400, ["temperature"]),
    "n": (chat(n=1_000_000), 400, ["n"]),
    "max_tokens zero": (chat(max_tokens=0), 400, ["max_tokens"]),
    "max_tokens negative": (chat(max_tokens=-5), 400, ["max_tokens"]),
    "unknown model": (chat(model="no-such-model"), 404, ["no-such-model"]),
    "no messages": (chat(messages=[]), 400, ["messages"]),
    "over-long": (chat(messages=[{"role": "user", "content": "word " * 9000}]), 400, ["8192"]),
    "malformed JSON": (("/v1/chat/completions", b'{"model": "x", "messages": [}'), 400, ["JSON"]),
    "bad UTF-8": (("/v1/chat/completions", chat()[1].replace(b"Hello", b"\xff\xfe")), 400, []),
}
UNHONOURED = {
    "name": "x",
    "schema": {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in (("good", {"type": "object"}), ("bad", UNHONOURED["schema"]))
]
FRONT_JUDGES: dict[str, tuple[tuple[str, bytes], int, list[str]]] = {
    "empty prompt": (completion(""), 400, ["prompt is empty", "at least 1 token"]),
    "id too large": (generate([1, VOCABULARY]), 400, ["49152", "from 0 to 49151"]),
    "penalty": (completion("Hello", repetition_penalty=0.001), 400, ["repetition_penalty", "100"]),
    "logprobs": (chat(logprobs=True, top_logprobs=21), 400, ["top_logprobs", "20"]),
    "schema": (
        chat(response_format={"type": "json_schema", "json_schema": UNHONOURED}),
        400,
        ["json_schema", "does not honour 'uniqueItems' at #/properties/a"],
    ),
    "schema of a tool": (
        chat(tools=TOOLS, tool_choice="required"),
        400,
        [": llguidance does not honour 'uniqueItems' in tool bad at #/properties/a"],
    ),
}


@pytest.fixture
def http(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def check(http: httpx.Client, case: tuple[tuple[str, bytes], int, list[str]]) -> None:
    (path, body), status, words = case
    answer = http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    for word in words:
        assert word in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("name", GATEWAY_JUDGES)
def test_the_gateway_refuses(http: httpx.Client, name: str) -> None:
    check(http, GATEWAY_JUDGES[name])


@pytest.mark.parametrize("name", FRONT_JUDGES)
def test_the_front_refuses(http: httpx.Client, name: str) -> None:
    check(http, FRONT_JUDGES[name])


def test_the_gateway_takes_empty_content(http: httpx.Client) -> None:
    """The template still makes a prompt of it."""
    path, body = chat(messages=[{"role": "user", "content": ""}])
    answer = http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] > 20


def test_a_neighbour_is_unharmed(server: Any) -> None:
    """The same greedy answer with and without a stream of bad requests beside it."""

    def story() -> str:
        with server.openai as client:
            answer = client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Tell me about bridges."}],
                max_tokens=100,
                temperature=0,
            )
        return str(answer.choices[0].message.content)

    alone = story()
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=server.url, timeout=60) as http:
        beside = pool.submit(story)
        refused = 0
        while not beside.done():
            for case in (*GATEWAY_JUDGES.values(), *FRONT_JUDGES.values()):
                check(http, case)
                refused += 1
        assert refused >= 14
        assert beside.result() == alone
    assert server.settled_ledger()["balanced"]


# name -> (change of a good request, what the status message must contain)
GRPC_CASES: dict[str, tuple[Callable[[Any], None], list[str]]] = {
    "no tokens": (lambda r: r.tokenized.ClearField("input_ids"), ["prompt is empty"]),
    "id too large": (
        lambda r: r.tokenized.input_ids.append(VOCABULARY), ["49152", "from 0 to 49151"]
    ),
    "id far too large": (lambda r: r.tokenized.input_ids.append(2**32 - 1), ["4294967295"]),
    "over-long": (
        lambda r: r.tokenized.input_ids.extend([5] * CONTEXT), ["prompt", "8195 tokens", "8191"]
    ),
    "max_tokens": (
        lambda r: setattr(r.sampling_params, "max_new_tokens", 0), ["max_tokens", "at least 1"]
    ),
    "temperature": (
        lambda r: setattr(r.sampling_params, "temperature", -1.0), ["temperature", "-1.0"]
    ),
    "not a number": (
        lambda r: setattr(r.sampling_params, "temperature", float("nan")), ["temperature", "nan"]
    ),
    "top_p": (lambda r: setattr(r.sampling_params, "top_p", 1.5), ["top_p", "1.5", "at most 1"]),
    "n": (lambda r: setattr(r.sampling_params, "n", 1_000_000), ["n is 1000000", "from 1 to"]),
    "regex": (
        lambda r: setattr(r.sampling_params, "regex", "(a"), ["regex", "(a", "unclosed group"]
    ),
    "logprobs": (
        lambda r: setattr(r, "top_logprobs_num", 1_000_000_000), ["top_logprobs", "from 0 to 20"]
    ),
    "bias": (
        lambda r: r.sampling_params.logit_bias.update({"-1": 1.0}), ["logit_bias", "from 0 to"]
    ),
}  # fmt: skip


def good_request(number: str) -> Any:
    request = pb.GenerateRequest(request_id=f"bad-input-{number}")
    request.tokenized.input_ids.extend([504, 3575, 282])
    request.sampling_params.temperature = 0
    request.sampling_params.max_new_tokens = 3
    request.sampling_params.n = 1
    return request


@pytest.mark.parametrize("name", GRPC_CASES)
def test_grpc_refuses_with_field_value_and_range(server: Any, name: str) -> None:
    change, words = GRPC_CASES[name]
    request = good_request(name)
    change(request)
    with grpc.insecure_channel(server.grpc_address()) as channel:
        stub = pb_grpc.TokenSpeedSchedulerStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(request))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        for word in words:
            assert word in caught.value.details()
        assert list(stub.Generate(good_request(name + " after")))[-1].complete.output_ids
