# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What clients send in a soak.

A kind is a function from a generator of random numbers to a Request, which says what may come back:
which statuses make sense, and what an answer must hold.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHAT, TEXT, RAW = "/v1/chat/completions", "/v1/completions", "/generate"
MODEL = "soak"
POOL_TOKENS = 64 * 16
WORDS = ("river", "lamp", "seven", "north", "paper", "glass", "stone", "early", "under", "wheel")
PREFIXES = tuple(" ".join(WORDS[(i * k) % 10] for i in range(70)) for k in (1, 3, 7))
"""Three beginnings that many prompts share, each of a few pages."""

Json = dict[str, Any]
Check = Callable[[Json], bool]


def fine(answer: Json) -> bool:
    """Any answer of status 200 is."""
    return True


@dataclass(frozen=True)
class Request:
    """One request, how its client behaves, and what makes sense as its answer.

    Attributes:
        body: JSON, or bytes that are none.
        statuses: that an answer may have; 429, for a full queue, may come to any request.
        check: of the body of a 200 that does not stream.
        leave_after: pieces of a stream after which the client leaves; None: it stays.
        give_up_s: seconds after which a client that does not stream leaves.
        copies: clients that send the very same at once.
    """

    path: str
    body: Json | bytes
    statuses: tuple[int, ...] = (200,)
    check: Check = fine
    leave_after: int | None = None
    give_up_s: float | None = None
    copies: int = 1

    @property
    def streams(self) -> bool:
        return isinstance(self.body, dict) and bool(self.body.get("stream"))

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


Kind = Callable[[random.Random], Request]


def said(luck: random.Random, words: int = 12) -> str:
    return " ".join(luck.choice(WORDS) for _ in range(words))


def chat(luck: random.Random, **fields: Any) -> Json:
    messages = [{"role": "user", "content": f"{luck.choice(PREFIXES)} {said(luck)}"}]
    tokens = luck.randint(1, 48)
    sampling = {"temperature": luck.choice((0, 0.7, 1.3)), "seed": luck.randrange(1 << 31)}
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, **sampling, **fields}


def choices(answer: Json) -> list[Json]:
    found: list[Json] = answer["choices"]
    return found


def within_length(answer: Json, most: int) -> bool:
    return 0 < answer["usage"]["completion_tokens"] <= most


# -- Requests that are well, and are answered ------------------------------------------------------


def stream(luck: random.Random) -> Request:
    return Request(CHAT, chat(luck, stream=True))


def whole(luck: random.Random) -> Request:
    """Now and then with a stop string, for which the front makes text."""
    body = chat(luck, **luck.choice(({}, {"stop": [" the", "ing"]})))
    return Request(CHAT, body, check=lambda answer: within_length(answer, body["max_tokens"]))


def exact_length(luck: random.Random) -> Request:
    """Without an end of its own: as many tokens as were asked for, guesses or not."""
    tokens = luck.randint(1, 64)
    body = {"model": MODEL, "prompt": said(luck, 30), "max_tokens": tokens, "ignore_eos": True}
    return Request(
        TEXT, body, check=lambda answer: bool(answer["usage"]["completion_tokens"] == tokens)
    )


def repeats(luck: random.Random) -> Request:
    """Food for the drafter: greedy, from a text that says itself again."""
    body = {"model": MODEL, "prompt": " ".join([said(luck, 8)] * 6), "temperature": 0}
    return Request(TEXT, body | {"max_tokens": 64, "ignore_eos": True})


def sampled(luck: random.Random) -> Request:
    """With penalties, and log-probabilities of every token."""
    fields = {
        "frequency_penalty": luck.uniform(-2, 2),
        "presence_penalty": luck.uniform(-2, 2),
        "top_p": luck.uniform(0.1, 1),
        "logprobs": True,
        "top_logprobs": luck.randint(0, 5),
    }

    def check(answer: Json) -> bool:
        found = choices(answer)[0]["logprobs"]["content"]
        return all(each["logprob"] <= 0 for each in found) and bool(found)

    return Request(CHAT, chat(luck, **fields), check=check)


def several(luck: random.Random) -> Request:
    count = luck.randint(2, 4)
    return Request(CHAT, chat(luck, n=count), check=lambda answer: len(choices(answer)) == count)


def retried(luck: random.Random) -> Request:
    return Request(CHAT, chat(luck, stream=luck.random() < 0.5), copies=3)


# -- Clients who leave -----------------------------------------------------------------------------


def leaves(luck: random.Random) -> Request:
    body = chat(luck, stream=True, ignore_eos=True, max_tokens=400)
    return Request(CHAT, body, leave_after=luck.randint(1, 12))


def gives_up(luck: random.Random) -> Request:
    body = chat(luck, ignore_eos=True, max_tokens=700)
    return Request(CHAT, body, give_up_s=luck.uniform(0.01, 0.4))


# -- Structured output -----------------------------------------------------------------------------


def schema_of(properties: Json) -> Json:
    required = list(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def asked_for(schema: Json) -> Json:
    named = {"name": "soak", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def parses(text: str, keys: list[str]) -> bool:
    try:
        return list(json.loads(text)) == keys
    except ValueError:
        return False


def grammar(luck: random.Random) -> Request:
    """One of many schemas: what ends by itself parses."""
    names = sorted(luck.sample(WORDS, 2))
    schema = schema_of({name: {"type": "integer", "minimum": 0, "maximum": 99} for name in names})

    def check(answer: Json) -> bool:
        choice = choices(answer)[0]
        return choice["finish_reason"] != "stop" or parses(choice["message"]["content"], names)

    return Request(CHAT, chat(luck, max_tokens=100, **asked_for(schema)), check=check)


def bad_grammar(luck: random.Random) -> Request:
    bad: Json = luck.choice(
        (
            {"regex": "(unclosed"},
            {"ebnf": "no rule at all"},
            asked_for({"type": "array", "uniqueItems": True}),
            asked_for({"type": "no such type"}),
            asked_for({"$ref": "#/nowhere"}),
        )
    )
    return Request(CHAT, chat(luck, **bad), statuses=(400,))


def slow_grammar(luck: random.Random) -> Request:
    """Compiling it takes a second or more, while others wait; or it is too large, and refused. One
    of forty: what is compiled is kept, and is large."""
    shape = random.Random(luck.randrange(40))
    pattern = {"type": "string", "pattern": "^[a-z]{1,20}[0-9]{1,20}$"}
    names = {f"{shape.choice(WORDS)}{i}": pattern for i in range(shape.choice((200, 400, 2000)))}
    words = [f"{shape.choice(WORDS)} {shape.randrange(1 << 30)}" for _ in range(10_000)]
    slow: Json = shape.choice(
        (asked_for(schema_of(names)), asked_for({"enum": words}), {"regex": "(a|b){1,100000}c"})
    )
    return Request(CHAT, chat(luck, max_tokens=8, **slow), statuses=(200, 400))


def tools(luck: random.Random) -> Request:
    """A call that must be made: if it is made whole, its arguments parse."""
    names = sorted(luck.sample(WORDS, 2))
    parameters = schema_of({name: {"enum": ["yes", "no"]} for name in names})
    function = {"name": "decide", "description": "Decide.", "parameters": parameters}
    fields = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}

    def check(answer: Json) -> bool:
        choice = choices(answer)[0]
        calls = choice["message"].get("tool_calls") or []
        ended = choice["finish_reason"] == "tool_calls"
        return not ended or all(parses(call["function"]["arguments"], names) for call in calls)

    return Request(CHAT, chat(luck, max_tokens=120, **fields), check=check)


# -- Requests that are wrong -----------------------------------------------------------------------


def bad_input(luck: random.Random) -> Request:
    message = [{"role": "user", "content": "Hello"}]
    base = {"model": MODEL, "messages": message, "max_tokens": 4}
    raw = {"model": MODEL, "sampling_params": {"max_new_tokens": 2}}
    path, body = luck.choice(
        (
            (CHAT, base | {"temperature": -1}),
            (CHAT, base | {"max_tokens": luck.choice((0, -5))}),
            (CHAT, base | {"n": 5_000_000}),
            (CHAT, base | {"messages": []}),
            (CHAT, base | {"top_logprobs": 1_000_000, "logprobs": True}),
            (TEXT, {"model": MODEL, "prompt": "", "max_tokens": 4}),
            (RAW, raw | {"input_ids": [-1]}),
            (RAW, raw | {"input_ids": [2**31 - 1]}),
            (RAW, raw | {"input_ids": []}),
        )
    )
    return Request(path, body, statuses=(400, 422))


def no_json(luck: random.Random) -> Request:
    whole_body = json.dumps(chat(luck)).encode()
    cut = whole_body[: luck.randrange(len(whole_body))]
    return Request(CHAT, luck.choice((cut, b"\xff" + whole_body, b"")), statuses=(400,))


def unknown_model(luck: random.Random) -> Request:
    return Request(CHAT, chat(luck, model="no-such-model"), statuses=(404,))


def oversize(luck: random.Random) -> Request:
    """More than the whole pool holds, by a little or by far."""
    length = POOL_TOKENS + luck.choice((0, 1, 100, 10_000))
    body = {"model": MODEL, "input_ids": [7] * length, "sampling_params": {"max_new_tokens": 1}}
    return Request(RAW, body, statuses=(400,))


MIX: dict[Kind, int] = {
    stream: 14,
    whole: 10,
    exact_length: 8,
    repeats: 8,
    sampled: 8,
    several: 5,
    retried: 5,
    leaves: 10,
    gives_up: 8,
    grammar: 6,
    bad_grammar: 3,
    slow_grammar: 1,
    tools: 5,
    bad_input: 4,
    no_json: 2,
    unknown_model: 1,
    oversize: 2,
}
"""How often each comes, among a hundred."""


def draw(seed: str) -> tuple[str, Request]:
    """The name of a kind, and a request of it: the same for the same seed."""
    luck = random.Random(seed)
    (kind,) = luck.choices([*MIX], [*MIX.values()])
    return kind.__name__, kind(luck)
