# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The OpenAI client against the whole chain: gateway, front, engine, real weights."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import openai
import pytest

MODEL = "SmolLM2-135M-Instruct"
TOKYO = [{"role": "user", "content": "What is the capital of Japan?"}]
STORY = [{"role": "user", "content": "Tell me a short story about a robot that learns to paint."}]


def ask(client: openai.OpenAI, messages: list[dict[str, str]], **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 48, **options}
    return client.chat.completions.create(model=MODEL, messages=messages, **options)


def streamed(client: openai.OpenAI, messages: list[dict[str, str]], **options: Any) -> list[Any]:
    usage = {"include_usage": True}
    return list(ask(client, messages, stream=True, stream_options=usage, **options))


def text_of(chunks: list[Any]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_chat_answers(client: openai.OpenAI) -> None:
    answer = ask(client, TOKYO)
    assert "Tokyo" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 37
    assert 1 < answer.usage.completion_tokens < 48
    assert answer.usage.total_tokens == 37 + answer.usage.completion_tokens


def test_stream_says_the_same_in_pieces(client: openai.OpenAI) -> None:
    whole = ask(client, STORY)
    chunks = streamed(client, STORY)
    assert text_of(chunks) == whole.choices[0].message.content
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) > 20
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 48


@pytest.fixture(scope="module")
def free(server: Any) -> str:
    """A whole answer, greedily."""
    with server.openai as client:
        return str(ask(client, STORY).choices[0].message.content)


@pytest.mark.parametrize("first_words", [1, 4, 9])
@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_answer(
    client: openai.OpenAI, free: str, first_words: int, stream: bool
) -> None:
    """The string starts and ends inside words, so it lies across tokens and chunks."""
    words = free.split(" ")
    start = len(" ".join(words[:first_words])) - 2
    stop = free[start : start + 7]
    expected = free[: free.index(stop)]
    if stream:
        chunks = streamed(client, STORY, stop=[stop])
        text, usage = text_of(chunks), chunks[-1].usage
    else:
        answer = ask(client, STORY, stop=["not in the answer", stop])
        text, usage = answer.choices[0].message.content, answer.usage
        assert answer.choices[0].finish_reason == "stop"
    assert text == expected
    assert usage.completion_tokens < 48, "the engine went on after the stop string"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_inside_multibyte_text(client: openai.OpenAI, stream: bool) -> None:
    """Each of these characters takes several tokens; the model goes on with the pattern."""
    options: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 40}
    prompt = "こんにちは世界。" * 4
    free = client.completions.create(prompt=prompt, **options).choices[0].text
    stop = "世界。こ"
    assert stop in free, "the prompt no longer leads to multi-byte text"
    if stream:
        chunks = client.completions.create(prompt=prompt, stop=[stop], stream=True, **options)
        text = "".join(c.choices[0].text for c in chunks if c.choices)
    else:
        text = client.completions.create(prompt=prompt, stop=[stop], **options).choices[0].text
    assert text == free[: free.index(stop)]
    assert "\ufffd" not in text


def test_two_answers_to_one_prompt(client: openai.OpenAI) -> None:
    sampled = ask(client, STORY, n=2, temperature=1, seed=5)
    texts = [choice.message.content for choice in sampled.choices]
    assert [choice.index for choice in sampled.choices] == [0, 1]
    assert texts[0] != texts[1]
    assert sampled.usage.completion_tokens > 48  # of both
    greedy = ask(client, TOKYO, n=2)
    assert greedy.choices[0].message.content == greedy.choices[1].message.content


def test_seed_repeats_a_sampled_answer(client: openai.OpenAI) -> None:
    def answers(seed: int, n: int = 1) -> list[str]:
        """Each up to its first "a": one may be over long before those in front of it."""
        made = ask(client, STORY, temperature=1, max_tokens=32, seed=seed, n=n, stop="a")
        assert [choice.index for choice in made.choices] == list(range(n))
        return [str(choice.message.content) for choice in made.choices]

    alone = [answers(seed)[0] for seed in range(11, 15)]
    assert answers(11) == alone[:1]
    assert len(set(alone)) == 4
    assert answers(11, n=4) == alone
    assert len(alone[2]) < len(alone[1]), "the second ends behind the third: seeds tell nothing"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: openai.OpenAI, stream: bool) -> None:
    """Greedily, the likeliest token is the one that comes."""
    asked: dict[str, Any] = {"max_tokens": 12, "logprobs": True, "top_logprobs": 4}
    if stream:
        chunks = streamed(client, STORY, **asked)
        found = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
        text, content = text_of(chunks), [each for part in found for each in part.content]
    else:
        choice = ask(client, STORY, **asked).choices[0]
        text, content = choice.message.content, choice.logprobs.content
    assert "".join(each.token for each in content) == text
    for each in content:
        tops = [top.logprob for top in each.top_logprobs]
        assert (each.top_logprobs[0].token, tops[0]) == (each.token, each.logprob)
        assert tops == sorted(tops, reverse=True)
        assert sum(math.exp(logprob) for logprob in tops) <= 1 + 1e-4


def test_penalties(client: openai.OpenAI) -> None:
    """Tokens come again less often, or more often."""

    def most(**options: Any) -> int:
        choice = ask(client, STORY, logprobs=True, **options).choices[0]
        return max(Counter(each.token for each in choice.logprobs.content).values())

    plain = most()
    assert most(frequency_penalty=2, presence_penalty=1) < plain
    assert most(extra_body={"repetition_penalty": 1.5}) < plain
    assert most(frequency_penalty=-2) > plain


def test_min_tokens(client: openai.OpenAI) -> None:
    """Of an answer that ends by itself, and of one that a string ends."""
    question = "<|im_start|>user\nWhat is the capital of Japan?<|im_end|>\n<|im_start|>assistant\n"

    def length(**options: Any) -> int:
        answer = client.completions.create(
            model=MODEL, prompt=question, temperature=0, max_tokens=32, **options
        )
        assert answer.choices[0].finish_reason == "stop" or "extra_body" in options
        return int(answer.usage.completion_tokens)

    assert length() < 30 <= length(extra_body={"min_tokens": 30})
    assert length(stop=["Tokyo"]) < 10
    assert length(stop=["Tokyo"], extra_body={"min_tokens": 30}) >= 30


def test_completions_and_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=8, temperature=0
    )
    assert "Paris" in answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"


def test_max_tokens_is_clamped_to_what_fits(client: openai.OpenAI) -> None:
    answer = ask(client, TOKYO, max_tokens=1_000_000)
    assert answer.choices[0].finish_reason == "stop"
