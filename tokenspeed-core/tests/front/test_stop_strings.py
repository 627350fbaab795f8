# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Stop strings end the generation, wherever the engine's steps cut the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
from tokenizers import Tokenizer
from tokenspeed.front.engine_client import EngineClient
from tokenspeed.front.generation import Generation
from tokenspeed.front.request import GenerationRequest, Limits
from tokenspeed.front.sampling_params import SamplingParams
from tokenspeed.messages import Submit

from .conftest import eventually
from .fake_engine import FakeEngine, Script

LIMITS = Limits(max_model_len=128, vocab_size=512, eos_ids=(2,))
ANSWER = "ö hello 🙂own fox jumps🙂 hello"


@dataclass
class Answer:
    token_ids: list[int]
    text: str
    reason: str | None
    stop_string: str | None
    completion_tokens: int


@pytest.fixture
async def client(address: str, engine: FakeEngine) -> AsyncIterator[EngineClient]:
    async with EngineClient(address) as running:
        await running.wait_ready()
        yield running


def cut(ids: list[int], cuts: list[int]) -> Script:
    def script(submit: Submit) -> Iterator[list[int]]:
        edges = [0, *cuts, len(ids)]
        for start, end in pairwise(edges):
            yield ids[start:end]
        while True:
            yield [10]

    return script


async def answer(client: EngineClient, tokenizer: Tokenizer, **params: object) -> Answer:
    request = GenerationRequest.validated([10], SamplingParams(**params), LIMITS)  # type: ignore[arg-type]
    result = Answer([], "", None, None, 0)
    with Generation(client, request, tokenizer=tokenizer) as generation:
        while not generation.done:
            for output in await generation.next():
                result.token_ids += output.token_ids
                result.text += output.text
                result.completion_tokens = output.completion_tokens
                result.reason = output.finish_reason
                result.stop_string = output.stop_string
    return result


@pytest.mark.parametrize("stop", ["own fox", "🙂own", "w", "s🙂 h"])
async def test_every_cut_gives_the_same_answer(
    client: EngineClient, engine: FakeEngine, tokenizer: Tokenizer, stop: str
) -> None:
    engine.step_s = 0
    ids = tokenizer.encode(ANSWER).ids
    before = ANSWER[: ANSWER.index(stop)]
    end = next(i for i in range(len(ids) + 1) if stop in tokenizer.decode(ids[:i]))
    every_token = list(range(1, len(ids)))
    for cuts in [[], every_token, *([i] for i in every_token), *([i, i + 1] for i in every_token)]:
        engine.script = cut(ids, cuts)
        got = await answer(client, tokenizer, stop=["never there", stop])
        assert got == Answer(ids[:end], before, "stop", stop, end), cuts


@pytest.mark.parametrize("least", [0, 1, 2, 3, 4, 6, 7, 11])
async def test_none_counts_before_min_tokens(
    client: EngineClient, engine: FakeEngine, tokenizer: Tokenizer, least: int
) -> None:
    """Wherever steps cut: the first one that lies behind the least number of tokens ends it."""
    engine.step_s = 0
    ids = tokenizer.encode("w fox w fox w").ids
    ends = next(
        (n for n in range(least + 1, len(ids) + 1) if "w" in tokenizer.decode(ids[least:n])), None
    )
    for cuts in ([], list(range(1, len(ids))), [3], [5]):
        engine.script = cut(ids, cuts)
        got = await answer(client, tokenizer, stop=["w"], min_tokens=least, max_tokens=len(ids))
        if ends is None:
            assert (got.token_ids, got.reason) == (ids, "length")
        else:
            before = tokenizer.decode(ids[:ends]).rpartition("w")[0]
            assert got == Answer(ids[:ends], before, "stop", "w", ends)


async def test_the_engine_is_stopped(
    client: EngineClient, engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    engine.step_s = 0.005
    engine.script = cut(tokenizer.encode(ANSWER).ids, list(range(1, 40)))
    await answer(client, tokenizer, stop=["fox"])
    assert engine.aborts or engine.running
    await eventually(lambda: engine.running == 0)


async def test_no_match_flushes_what_was_held(
    client: EngineClient, engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("jumps own fo").ids
    engine.script = cut(ids, [3])
    got = await answer(client, tokenizer, stop=["own fox"], max_tokens=len(ids))
    assert got == Answer(ids, "jumps own fo", "length", None, len(ids))


async def test_stop_string_before_a_stop_token(
    client: EngineClient, engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("ab fox").ids
    engine.script = cut([*ids, 2], [])
    assert (await answer(client, tokenizer, stop=["fox"])).stop_string == "fox"
    engine.script = cut([*ids, 2], [])
    got = await answer(client, tokenizer, stop=["foxes"])
    assert got == Answer(ids, "ab fox", "stop", None, len(ids) + 1)


async def test_one_choice_stops_and_the_other_goes_on(
    client: EngineClient, engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    long, short = tokenizer.encode("hello hello").ids, tokenizer.encode("fox").ids

    def script(submit: Submit) -> Iterator[list[int]]:
        return cut(short if submit.sampling.seed == 1 else long, [1, 2])(submit)

    engine.script, engine.step_s = script, 0.01
    request = GenerationRequest.validated([10], SamplingParams(stop="ox", n=2, seed=0), LIMITS)
    with Generation(client, request, tokenizer=tokenizer) as generation:
        ended: list[int] = []
        while not ended:
            ended = [o.index for o in await generation.next() if o.finish_reason == "stop"]
        assert ended == [1]
        await eventually(lambda: engine.running == 1)
        assert not generation.done
        assert {output.index for output in await generation.next()} == {0}
