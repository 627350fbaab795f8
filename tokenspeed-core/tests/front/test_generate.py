# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The Generate RPC, as the gateway uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from smg_grpc_proto import tokenspeed_scheduler_pb2 as pb
from tokenspeed.messages import Rejected, Submit

from .conftest import EOS, Front, eventually


def request(request_id: str = "r1", *, stream: bool = True, **sampling: Any) -> Any:
    """What the gateway sends: every scalar set, neutral unless the client chose."""
    neutral = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "n": 1,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
    }
    return pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=[10, 11, 12]),
        sampling_params=pb.SamplingParams(**{**neutral, **sampling}),
        stream=stream,
        logprob_start_len=-1,
    )


async def responses(call: Any) -> tuple[list[Any], list[Any]]:
    """(chunks, completes)."""
    chunks, completes = [], []
    async for response in call:
        assert response.request_id == "r1"
        if response.HasField("chunk"):
            chunks.append(response.chunk)
        else:
            completes.append(response.complete)
    return chunks, completes


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async for _ in call:
            pass
    return error.value.code(), error.value.details() or ""


async def test_stream_sends_ids_in_chunks_only(front: Front) -> None:
    chunks, [complete] = await responses(front.stub.Generate(request(max_new_tokens=5)))
    assert [t for c in chunks for t in c.token_ids] == [13, 14, 15, 16, 17]
    assert [c.completion_tokens for c in chunks] == sorted(c.completion_tokens for c in chunks)
    assert {(c.prompt_tokens, c.cached_tokens) for c in chunks} == {(3, 3)}
    assert list(complete.output_ids) == []
    assert (complete.finish_reason, complete.completion_tokens) == ("length", 5)
    assert (complete.prompt_tokens, complete.cached_tokens) == (3, 3)
    assert complete.WhichOneof("matched_stop") is None


async def test_whole_answer_in_complete_only(front: Front) -> None:
    call = front.stub.Generate(request(stream=False, max_new_tokens=5))
    chunks, [complete] = await responses(call)
    assert chunks == []
    assert list(complete.output_ids) == [13, 14, 15, 16, 17]


async def test_whole_answers_come_in_their_order(front: Front) -> None:
    """Whichever ends first: the gateway numbers them as they arrive."""

    def script(submit: Submit) -> Iterator[list[int]]:
        yield from ([20] for _ in range([9, 2, 5][submit.sampling.seed]))
        yield [EOS]

    front.engine.script = script
    call = front.stub.Generate(request(stream=False, n=3, sampling_seed=0, max_new_tokens=20))
    chunks, completes = await responses(call)
    assert chunks == []
    assert [complete.index for complete in completes] == [0, 1, 2]
    assert [len(complete.output_ids) for complete in completes] == [9, 2, 5]


@pytest.mark.parametrize("keep", [False, True])
async def test_stop_token_is_counted_and_trimmed(front: Front, keep: bool) -> None:
    call = front.stub.Generate(request(stream=False, stop_token_ids=[15], no_stop_trim=keep))
    _, [complete] = await responses(call)
    assert list(complete.output_ids) == [13, 14, 15] if keep else [13, 14]
    assert (complete.finish_reason, complete.matched_token_id) == ("stop", 15)
    assert complete.completion_tokens == 3


async def test_eos_first_gives_no_chunk(front: Front) -> None:
    front.engine.script = lambda submit: iter([[EOS]])
    chunks, [complete] = await responses(front.stub.Generate(request()))
    assert chunks == []
    assert (complete.finish_reason, complete.matched_token_id) == ("stop", EOS)
    assert complete.completion_tokens == 1


async def test_eos_is_among_the_stop_ids_unless_ignored(front: Front) -> None:
    await responses(front.stub.Generate(request(max_new_tokens=1, stop_token_ids=[7, EOS])))
    await responses(front.stub.Generate(request(max_new_tokens=1, ignore_eos=True)))
    assert [s.stop_ids for s in front.engine.submits] == [[EOS, 0, 7], []]


async def test_n_choices_are_one_request(front: Front) -> None:
    call = front.stub.Generate(request(n=3, max_new_tokens=4, sampling_seed=(1 << 64) - 2))
    chunks, completes = await responses(call)
    assert sorted(c.index for c in completes) == [0, 1, 2]
    for index in range(3):
        ids = [t for c in chunks if c.index == index for t in c.token_ids]
        assert ids == [13, 14, 15, 16]
    assert [s.sampling.seed for s in front.engine.submits] == [(1 << 64) - 2, (1 << 64) - 1, 0]
    assert len(front.engine.messages) == 1


async def test_a_seed_is_drawn_when_there_is_none(front: Front) -> None:
    for _ in range(3):
        await responses(front.stub.Generate(request(max_new_tokens=1)))
    assert len({s.sampling.seed for s in front.engine.submits}) == 3


async def test_fast_tokens_are_coalesced(front: Front) -> None:
    front.engine.step_s = 0
    chunks, [complete] = await responses(front.stub.Generate(request(max_new_tokens=120)))
    assert [t for c in chunks for t in c.token_ids] == list(range(13, 133))
    assert complete.completion_tokens == 120


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_cancelled_rpc_aborts(front: Front, started: bool, stream: bool) -> None:
    front.engine.frozen = not started
    front.engine.step_s = 0.01
    call = front.stub.Generate(request(stream=stream, n=2))
    await eventually(lambda: front.engine.running == 2)
    if started and stream:
        await call.read()
    call.cancel()
    await eventually(lambda: front.engine.running == 0)
    assert sorted(front.engine.aborts) == [s.request for s in front.engine.submits]
    assert front.client.alive == 0


@pytest.mark.parametrize("frozen", [False, True])
async def test_abort_rpc_ends_the_stream_at_once(front: Front, frozen: bool) -> None:
    front.engine.frozen = frozen
    front.engine.step_s = 0.01
    call = front.stub.Generate(request())
    await eventually(lambda: front.engine.running == 1)
    answer = await front.stub.Abort(pb.AbortRequest(request_id="r1", reason="Stream dropped"))
    assert answer.success
    _, [complete] = await responses(call)
    assert complete.finish_reason == "abort"
    await eventually(lambda: front.engine.running == 0)


async def test_spurious_abort_is_no_error(front: Front) -> None:
    await responses(front.stub.Generate(request(max_new_tokens=1)))
    answer = await front.stub.Abort(pb.AbortRequest(request_id="r1"))
    assert not answer.success
    assert front.engine.aborts == []


async def test_duplicate_id(front: Front) -> None:
    front.engine.frozen = True
    first = front.stub.Generate(request())
    await eventually(lambda: front.engine.running == 1)
    code, text = await code_of(front.stub.Generate(request()))
    assert code == grpc.StatusCode.ALREADY_EXISTS
    assert "r1" in text
    front.engine.frozen = False
    await first.read()
    first.cancel()


async def test_deadline_kept_by_the_engine(serving: Any) -> None:
    async with serving(request_timeout=0.2) as front:
        front.engine.step_s = 0.02
        code, text = await code_of(front.stub.Generate(request()))
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "0.2 s" in text
        assert "the engine stopped it" in text


async def test_deadline_kept_without_the_engine(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenspeed.front.service.BACKSTOP_S", 0.1)
    async with serving(request_timeout=0.1) as front:
        front.engine.frozen = True
        code, text = await code_of(front.stub.Generate(request()))
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "did not answer" in text
        await eventually(lambda: front.engine.aborts == [1])


async def test_full_queue(serving: Any) -> None:
    async with serving(max_queue=2) as front:  # 8 may run
        front.engine.frozen = True
        calls = [front.stub.Generate(request(f"q{i}", n=5)) for i in range(2)]
        await eventually(lambda: front.engine.running == 10)
        code, text = await code_of(front.stub.Generate(request("one more")))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "8 may run and 2 may wait" in text
        calls[0].cancel()
        await eventually(lambda: front.engine.running == 5)
        front.engine.frozen = False
        await responses(front.stub.Generate(request(max_new_tokens=1)))
        calls[1].cancel()
        code, text = await code_of(front.stub.Generate(request(n=11)))
        assert code == grpc.StatusCode.INVALID_ARGUMENT, "it would wait for ever"
        assert text == "n is 11, but must be at most 10: 8 may run and 2 may wait here"


async def test_refused_by_the_scheduler(front: Front) -> None:
    front.engine.reject = Rejected(0, "never_fits", 70, 64)
    code, text = await code_of(front.stub.Generate(request()))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "never_fits" in text
    assert "needs 70, 64 available" in text


async def test_failed_in_the_engine(front: Front) -> None:
    front.engine.fail = "NaN in the logits"
    code, text = await code_of(front.stub.Generate(request(n=2)))
    assert code == grpc.StatusCode.INTERNAL
    assert "NaN in the logits" in text
    front.engine.fail = None
    await responses(front.stub.Generate(request(max_new_tokens=1)))


async def test_engine_death_ends_every_stream(front: Front) -> None:
    front.engine.frozen = True
    calls = [front.stub.Generate(request(f"r{i}")) for i in range(3)]
    await eventually(lambda: front.engine.running == 3)
    front.engine.die()
    for code, text in await asyncio.gather(*map(code_of, calls)):
        assert code == grpc.StatusCode.UNAVAILABLE
        assert "closed the connection" in text
    code, _ = await code_of(front.stub.Generate(request()))
    assert code == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
        await front.stub.HealthCheck(pb.HealthCheckRequest())


async def test_no_metadata_before_the_first_token(front: Front) -> None:
    front.engine.frozen = True
    call = front.stub.Generate(request(max_new_tokens=1))
    await eventually(lambda: front.engine.running == 1)
    metadata = asyncio.ensure_future(call.initial_metadata())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(metadata), 0.1)
    front.engine.frozen = False
    await asyncio.wait_for(metadata, 10)
    await responses(call)
