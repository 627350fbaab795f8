# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Answers that must match, through the real gateway, by the OpenAI client."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

MODEL = "SmolLM2-135M-Instruct"
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
        "tags": {"type": "array", "items": {"enum": ["old", "new"]}, "maxItems": 2},
    },
    "required": ["city", "population", "tags"],
    "additionalProperties": False,
}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "description": f"{name}, please", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    tool("get_weather", city={"type": "string", "maxLength": 20}),
    tool("get_time", zone={"enum": ["CET", "UTC"]}),
]
QUESTION = [{"role": "user", "content": "What is the weather in Paris, and what time is it?"}]


def options(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": QUESTION, "max_tokens": 120, "temperature": 0} | more


def answer(client: openai.OpenAI, **more: Any) -> tuple[str, str]:
    choice = client.chat.completions.create(**options(**more)).choices[0]
    return str(choice.message.content), str(choice.finish_reason)


def schema(content: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": content, "strict": True}}


def check_city(text: str) -> None:
    city = json.loads(text)
    assert list(city) == ["city", "population", "tags"]
    assert len(city["city"]) <= 20
    assert 0 <= city["population"] <= 99_999_999
    assert set(city["tags"]) <= {"old", "new"}


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_schema(client: openai.OpenAI, temperature: float) -> None:
    """At a temperature at which the model alone writes no JSON."""
    given = schema(CITY)
    text, reason = answer(client, response_format=given, temperature=temperature, seed=5)
    assert reason == "stop"
    check_city(text)


def test_a_schema_streamed(client: openai.OpenAI) -> None:
    whole, _ = answer(client, response_format=schema(CITY))
    events = client.chat.completions.create(**options(response_format=schema(CITY)), stream=True)
    parts = [choice.delta.content or "" for event in events for choice in event.choices]
    assert "".join(parts) == whole


def test_several_answers_each_match(client: openai.OpenAI) -> None:
    given = options(response_format=schema(CITY), n=4, temperature=1, seed=3)
    choices = client.chat.completions.create(**given).choices
    assert len({choice.message.content for choice in choices}) > 1
    for choice in choices:
        check_city(str(choice.message.content))


def test_any_object(client: openai.OpenAI) -> None:
    text, _ = answer(client, response_format={"type": "json_object"}, max_tokens=12)
    assert text.startswith("{")
    assert not text.startswith("{{")


def test_a_regular_expression_and_a_grammar(client: openai.OpenAI) -> None:
    text, reason = answer(client, extra_body={"regex": r"(Paris|Rome): [0-9]{2} degrees"})
    assert re.fullmatch(r"(Paris|Rome): [0-9]{2} degrees", text)
    assert reason == "stop"
    text, reason = answer(client, extra_body={"ebnf": 'root ::= "yes" | "no" | "maybe"'})
    assert (text in ("yes", "no", "maybe"), reason) == (True, "stop")


def test_a_stop_string_ends_it_earlier(client: openai.OpenAI) -> None:
    text, reason = answer(client, response_format=schema(CITY), stop=["population"])
    assert text.rstrip().endswith('"')
    assert "population" not in text
    assert reason == "stop"


@pytest.fixture
def tool_user(tool_server: Any) -> Iterator[openai.OpenAI]:
    with tool_server.openai as client:
        yield client


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]


def streamed_calls(client: openai.OpenAI, given: dict[str, Any]) -> list[tuple[str, Any]]:
    """Put together by their index, as clients do."""
    parts: dict[int, list[str]] = {}
    events = client.chat.completions.create(**given, stream=True)
    for call in (c for e in events for o in e.choices for c in o.delta.tool_calls or ()):
        assert call.function is not None
        name, arguments = parts.setdefault(call.index, ["", ""])
        parts[call.index] = [
            name + (call.function.name or ""),
            arguments + (call.function.arguments or ""),
        ]
    assert sorted(parts) == [*range(len(parts))]
    return [(name, json.loads(arguments)) for name, arguments in parts.values()]


@pytest.mark.parametrize("template", ["own", "tools"])
@pytest.mark.parametrize("choice", ["required", "get_time", "get_weather"])
def test_a_forced_call(request: pytest.FixtureRequest, template: str, choice: str) -> None:
    """With any template, whole and streamed: tools that were offered, arguments that parse."""
    client = request.getfixturevalue("client" if template == "own" else "tool_user")
    named = {"type": "function", "function": {"name": choice}}
    given = options(
        tools=TOOLS,
        tool_choice=choice if choice == "required" else named,
        parallel_tool_calls=False,
    )
    whole = client.chat.completions.create(**given).choices[0]
    assert whole.finish_reason == "tool_calls"
    [(name, arguments)] = calls = calls_of(whole.message)
    assert choice in ("required", name)
    assert list(arguments) == ["city" if name == "get_weather" else "zone"]
    assert streamed_calls(client, given) == calls


def talk(*cities: str) -> list[dict[str, Any]]:
    """Questions that were answered with the tool's help, and one that was not yet."""
    messages: list[dict[str, Any]] = []
    for city in cities[:-1]:
        call = {"name": "get_weather", "arguments": json.dumps({"city": city})}
        messages += [
            {"role": "user", "content": f"What is the weather in {city}?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": city, "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": city, "content": "18 degrees"},
            {"role": "assistant", "content": f"It is 18 degrees in {city}."},
        ]
    return [*messages, {"role": "user", "content": f"What is the weather in {cities[-1]}?"}]


def test_the_model_decides_to_call(tool_user: openai.OpenAI) -> None:
    """A small one because it has just done so three times; greedily, always."""
    given = options(messages=talk("Rome", "Oslo", "Madrid", "Paris"), tools=TOOLS[:1])
    whole = tool_user.chat.completions.create(**given, tool_choice="auto").choices[0]
    assert whole.finish_reason == "tool_calls"
    assert calls_of(whole.message) == [("get_weather", {"city": "Paris"})]
    assert streamed_calls(tool_user, given) == calls_of(whole.message)


def test_the_compiler_starts_without_a_word(server: Any, client: openai.OpenAI) -> None:
    """gRPC warns of a process that is started beside its threads, unless it is told not to."""
    answer(client, response_format=schema(CITY), max_tokens=1)
    printed = "".join(server.process.output)
    assert "request 1 " in printed, "what the server writes to its standard error"
    assert "fork" not in printed


async def test_beside_others_nobody_waits_and_nothing_changes(server: Any) -> None:
    """Twelve at once with four constraints, of which one is refused, and four without."""

    async def one(number: int) -> str:
        given: dict[str, Any] = {}
        if number % 4 == 0:
            given = {"response_format": schema(CITY)}
        elif number % 4 == 1:
            given = {"extra_body": {"regex": f"[a-c]{{{3 + number}}}"}}
        elif number % 4 == 2:
            given = {"extra_body": {"regex": "(("}}
        async with server.async_openai as client:
            try:
                made = await client.chat.completions.create(**options(max_tokens=60, **given))
            except openai.BadRequestError as error:
                assert number % 4 == 2
                return str(error)
        return str(made.choices[0].message.content)

    texts = await asyncio.gather(*(one(number) for number in range(16)))
    for number, text in enumerate(texts):
        if number % 4 == 0:
            check_city(text)
        elif number % 4 == 1:
            assert re.fullmatch(f"[a-c]{{{3 + number}}}", text)
        elif number % 4 == 2:
            assert "regex" in text
    assert len(set(texts[3::4])) == 1, "those without a grammar are as if alone"
    assert server.settled_ledger()["balanced"]
