# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The Anthropic client against the whole chain: gateway, front, engine, real weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

MODEL = "SmolLM2-135M-Instruct"
Messages = list[dict[str, Any]]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


TOKYO = [user("What is the capital of Japan?")]
STORY = [user("Tell me a short story about a robot that learns to paint.")]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather in a city, now",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


def client_of(url: str) -> anthropic.Anthropic:
    """A client that tries once."""
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def claude(server: Any) -> Iterator[anthropic.Anthropic]:
    with client_of(server.url) as client:
        yield client


def options(**given: Any) -> dict[str, Any]:
    """Greedy: the client knows no temperature, the API does."""
    return {"model": MODEL, "max_tokens": 32, "extra_body": {"temperature": 0}, **given}


def ask(claude: anthropic.Anthropic, messages: Messages, **given: Any) -> Any:
    return claude.messages.create(**options(messages=messages, **given))


def text_of(message: Any) -> str:
    [block] = message.content
    assert block.type == "text"
    return str(block.text)


@pytest.fixture(scope="module")
def whole(claude: anthropic.Anthropic) -> Any:
    """The story, as far as it goes."""
    return ask(claude, STORY)


def test_it_answers_and_counts(claude: anthropic.Anthropic) -> None:
    message = ask(claude, TOKYO)
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert text_of(message) == "The capital of Japan is Tokyo."
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens == 37
    assert 1 < message.usage.output_tokens < 32
    assert claude.messages.count_tokens(model=MODEL, messages=TOKYO).input_tokens == 37


def test_the_openai_api_says_the_same(client: Any, whole: Any) -> None:
    chat = client.chat.completions.create(model=MODEL, messages=STORY, temperature=0, max_tokens=32)
    assert text_of(whole) == chat.choices[0].message.content
    assert whole.usage.output_tokens == chat.usage.completion_tokens == 32
    assert whole.stop_reason == "max_tokens"


def test_a_conversation_goes_on(claude: anthropic.Anthropic) -> None:
    blocks = [{"type": "text", "text": "And what is the capital of Spain?"}]
    message = ask(claude, [*TOKYO, assistant("It is Tokyo."), user(blocks)])
    assert "Madrid" in text_of(message)
    assert message.usage.input_tokens > 37


def test_the_system_prompt_is_the_templates(claude: anthropic.Anthropic) -> None:
    """It takes the place of the one that the template has; as text or as blocks."""
    system = "Answer in capital letters."
    blocks = [{"type": "text", "text": system}]
    tokens = claude.messages.count_tokens(model=MODEL, messages=TOKYO, system=system).input_tokens
    assert tokens != 37
    for given in (system, blocks):
        assert ask(claude, TOKYO, system=given).usage.input_tokens == tokens


def test_stream_says_the_same_in_pieces(claude: anthropic.Anthropic, whole: Any) -> None:
    with claude.messages.stream(**options(messages=STORY)) as stream:
        events = [event.type for event in stream]
        message = stream.get_final_message()
    assert text_of(message) == text_of(whole)
    assert message.usage.output_tokens == whole.usage.output_tokens == 32
    assert message.usage.input_tokens == whole.usage.input_tokens
    assert message.stop_reason == "max_tokens"
    assert events[:2] == ["message_start", "content_block_start"]
    assert events[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events.count("content_block_delta") > 20


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequence_ends_the_answer(
    claude: anthropic.Anthropic, whole: Any, stream: bool
) -> None:
    """It starts and ends inside words, so it lies across tokens."""
    free = text_of(whole)
    stop = free[17:25]
    asked = options(messages=STORY, stop_sequences=["not in the answer", stop])
    if stream:
        with claude.messages.stream(**asked) as running:
            message = running.get_final_message()
    else:
        message = claude.messages.create(**asked)
    assert text_of(message) == free[: free.index(stop)]
    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence == stop
    assert message.usage.output_tokens < 32, "the engine went on after the stop sequence"


def refused(claude: anthropic.Anthropic, status: int, **given: Any) -> str:
    """The message of a request that must be refused in the API's own form."""
    with pytest.raises(anthropic.APIStatusError) as caught:
        claude.messages.create(**options(**{"messages": TOKYO, **given}))
    assert caught.value.status_code == status
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert "Traceback" not in body["error"]["message"]
    return str(body["error"]["message"])


def test_errors_are_readable(claude: anthropic.Anthropic) -> None:
    assert "max_tokens" in refused(claude, 400, max_tokens=-1)
    assert "temperature" in refused(claude, 400, extra_body={"temperature": 3})
    assert "messages" in refused(claude, 400, messages=[])
    assert "'nobody'" in refused(claude, 404, model="nobody")
    assert "8192 tokens" in refused(claude, 400, messages=[user("word " * 9000)])
    assert "tools" in refused(claude, 400, tools=[{"name": "without a schema"}])
    assert "Tokyo" in text_of(ask(claude, TOKYO))


def test_a_tool_is_taken_and_can_be_forced(claude: anthropic.Anthropic) -> None:
    """The demo's own template has no place for tools; a grammar makes the call all the same."""
    assert "Tokyo" in text_of(ask(claude, TOKYO, tools=[WEATHER]))
    schema = WEATHER["input_schema"] | {
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "additionalProperties": False,  # or a small model adds some as long as it may
    }
    tools = [WEATHER | {"input_schema": schema}]
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        asked = [user("What is the weather in Paris, and what time is it?")]
        message = ask(claude, asked, tools=tools, tool_choice=choice, max_tokens=100)
        assert message.stop_reason == "tool_use"
        [use] = message.content
        assert (use.type, use.name) == ("tool_use", "get_weather")
        assert isinstance(use.input["city"], str)


@pytest.fixture
def tool_user(tool_server: Any) -> Iterator[anthropic.Anthropic]:
    with client_of(tool_server.url) as client:
        yield client


def weather_talk() -> Messages:
    """Three questions that were answered with the tool's help, and a fourth."""
    talk: Messages = []
    for city in ("Rome", "Oslo", "Madrid"):
        use = {"type": "tool_use", "id": city, "name": "get_weather", "input": {"city": city}}
        result = {"type": "tool_result", "tool_use_id": city, "content": "18 degrees"}
        talk += [user(f"What is the weather in {city}?"), assistant([use])]
        talk += [user([result]), assistant(f"It is 18 degrees in {city}.")]
    return [*talk, user("What is the weather in Paris?")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_reaches_the_model_and_its_call_comes_back(
    tool_user: anthropic.Anthropic, stream: bool
) -> None:
    """A small model does it because it has just done so three times; greedily, always."""
    asked = options(messages=weather_talk(), tools=[WEATHER])
    if stream:
        with tool_user.messages.stream(**asked) as running:
            message = running.get_final_message()
    else:
        message = tool_user.messages.create(**asked)
    assert message.stop_reason == "tool_use"
    [use] = message.content
    assert (use.type, use.name, use.input) == ("tool_use", "get_weather", {"city": "Paris"})
    bare = tool_user.messages.count_tokens(model=MODEL, messages=weather_talk())
    assert message.usage.input_tokens > bare.input_tokens + 50, "the prompt has no definition"
