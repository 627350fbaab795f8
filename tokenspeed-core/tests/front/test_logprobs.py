# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Log-probabilities stand beside the tokens that a client sees, wherever steps and stops cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from smg_grpc_proto import tokenspeed_scheduler_pb2 as pb
from tokenizers import Tokenizer
from tokenspeed.messages import Submit

from .conftest import EOS, Front
from .fake_engine import Script

ANSWER = "ab fox wörld 🙂 jumps"


def cut(ids: list[int], *cuts: int) -> Script:
    def script(submit: Submit) -> Iterator[list[int]]:
        for start, end in pairwise([0, *cuts, len(ids)]):
            yield ids[start:end]

    return script


async def ask(front: Front, *, stream: bool, top: int = 2, **sampling: Any) -> list[Any]:
    message = pb.GenerateRequest(
        request_id="r",
        tokenized=pb.TokenizedInput(input_ids=[1]),
        sampling_params=pb.SamplingParams(**sampling),
        return_logprob=top >= 0,
        top_logprobs_num=max(top, 0),
        stream=stream,
    )
    return [response async for response in front.stub.Generate(message)]


def parts_of(responses: list[Any]) -> list[tuple[list[int], Any]]:
    """(ids, log-probabilities) of the messages that carry tokens."""
    chunks = [(list(r.chunk.token_ids), r.chunk.output_logprobs) for r in responses]
    wholes = [(list(r.complete.output_ids), r.complete.output_logprobs) for r in responses]
    return [(ids, found) for ids, found in chunks + wholes if ids]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", [None, "ox w", "🙂"])
async def test_one_for_each_token(
    front: Front, tokenizer: Tokenizer, stream: bool, stop: str | None
) -> None:
    ids = tokenizer.encode(ANSWER).ids
    for cuts in ([], [1], list(range(1, len(ids))), [3, 9]):
        front.engine.script = cut([*ids, EOS], *cuts)
        parts = parts_of(await ask(front, stream=stream, stop=[stop] if stop else []))
        for tokens, found in parts:
            assert list(found.token_ids) == tokens
            assert list(found.token_logprobs) == [-token / 8 for token in tokens]
            assert [list(each.token_ids) for each in found.top_logprobs] == [[0, 1]] * len(tokens)
            assert [list(each.values) for each in found.top_logprobs] == [[-1, -2]] * len(tokens)
        seen = [token for tokens, _ in parts for token in tokens]
        if stop is None:
            assert seen == ids  # the end token is not shown
        else:
            assert stop in tokenizer.decode(seen)
            assert stop not in tokenizer.decode(seen[:-1])


@pytest.mark.parametrize("stream", [False, True])
async def test_the_drawn_token_alone(front: Front, stream: bool) -> None:
    parts = parts_of(await ask(front, stream=stream, top=0, max_new_tokens=3))
    for tokens, found in parts:
        assert list(found.token_logprobs) == [-token / 8 for token in tokens]
        assert [list(each.token_ids) for each in found.top_logprobs] == [[]] * len(tokens)
    assert front.engine.submits[-1].sampling.logprobs == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_nobody_asked(front: Front, stream: bool) -> None:
    responses = await ask(front, stream=stream, top=-1, max_new_tokens=3)
    assert not any(r.chunk.HasField("output_logprobs") for r in responses)
    assert not any(r.complete.HasField("output_logprobs") for r in responses)
    assert front.engine.submits[-1].sampling.logprobs == -1
