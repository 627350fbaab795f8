# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The events of requests, with an engine that is played: which come, in which order, with what."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any, TypeVar

import grpc
import pytest
from smg_grpc_proto import tokenspeed_scheduler_pb2 as pb
from tokenizers import Tokenizer
from tokenspeed.front import errors, service
from tokenspeed.messages import Rejected
from tokenspeed.observe.usage_log import log_usage
from tokenspeed_sdk.contracts.observer import (
    OUTCOMES,
    Event,
    LoadReported,
    RequestFinished,
    RequestReceived,
    SequenceStarted,
    ServerReady,
    StepFinished,
    TokensGenerated,
)

from .conftest import Front, eventually
from .fake_engine import READY
from .test_generate import code_of, request, responses

E = TypeVar("E", bound=Event)


def of(front: Front, kind: type[E]) -> list[E]:
    return [event for event in front.events if isinstance(event, kind)]


def names(front: Front) -> list[str]:
    """Hooks in order, without those of the engine itself."""
    engine = (ServerReady, StepFinished, LoadReported)
    return [event.hook for event in front.events if not isinstance(event, engine)]


async def test_one_request_from_receipt_to_end(front: Front) -> None:
    before, clock = time.time(), time.monotonic()
    await responses(front.stub.Generate(request(max_new_tokens=3)))
    took = time.monotonic() - clock
    assert names(front) == [
        *("request_received", "sequence_started"),
        *["tokens_generated"] * 3,
        "request_finished",
    ]
    received, [started] = of(front, RequestReceived)[0], of(front, SequenceStarted)
    assert (received.request, received.request_id, received.prompt_tokens) == (1, "r1", 3)
    assert (started.prompt_tokens, started.cached_tokens, started.index) == (3, 3, 0)
    first, *later = of(front, TokensGenerated)
    assert 0 <= started.queue_seconds <= first.seconds_since_received <= took
    assert first.seconds_since_previous is None
    gaps = [event.seconds_since_previous or 0 for event in later]
    total = first.seconds_since_received + sum(gaps)
    assert abs(later[-1].seconds_since_received - total) < 1e-6, "gaps add up"
    assert {event.token_ids for event in (first, *later)} == {None}, "nobody asked for ids"
    [finished] = of(front, RequestFinished)
    assert (finished.outcome, finished.output_tokens, finished.error) == ("length", 3, None)
    assert later[-1].seconds_since_received <= finished.seconds <= took
    assert all(before <= event.time <= time.time() for event in front.events[1:])


async def test_ready_comes_first_and_every_message_ends_with_the_load(front: Front) -> None:
    await responses(front.stub.Generate(request(max_new_tokens=2)))
    ready = front.events[0]
    assert isinstance(ready, ServerReady)
    assert (ready.model, ready.total_pages) == ("tiny", READY.total_pages)
    steps, loads = of(front, StepFinished), of(front, LoadReported)
    assert len(steps) == len(loads) == 2
    assert {(step.kind, step.decode_rows) for step in steps} == {("decode", 1)}
    last = loads[-1]
    assert last.free_pages + last.cached_pages + last.active_pages == READY.total_pages


async def test_the_host_tier_is_counted(front: Front) -> None:
    """Sums of the engine: a message that comes twice counts once."""
    front.engine.host_tier = {
        "loading": 1,
        "transfers": 2,
        "host_free_pages": 20,
        "host_total_pages": 32,
        "host_cached_tokens": 1,
        "stored_pages": 9,
        "loaded_pages": 5,
        "failed_transfers": 1,
        "retractions_to_host": 3,
        "sessions_returned": 4,
    }
    await responses(front.stub.Generate(request(max_new_tokens=3)))
    value = front.metrics.registry.get_sample_value
    told = {
        ("loading_sequences", ""): 1,
        ("tier_transfers", ""): 2,
        ("host_pages", "state=free"): 20,
        ("host_pages", "state=used"): 12,
        ("tier_hit_tokens_total", "tier=device"): 2,
        ("tier_hit_tokens_total", "tier=host"): 1,
        ("tier_transferred_pages_total", "direction=store"): 9,
        ("tier_transferred_pages_total", "direction=load"): 5,
        ("tier_failed_transfers_total", ""): 1,
        ("retractions_to_host_total", ""): 3,
        ("sessions_returned_total", ""): 4,
    }
    for (name, label), expected in told.items():
        labels = dict([label.split("=")]) if label else {}
        assert value(f"tokenspeed_{name}", labels) == expected, name
    front.engine.host_tier["host_cached_tokens"] = 3
    await responses(front.stub.Generate(request(max_new_tokens=1)))
    assert value("tokenspeed_tier_hit_tokens_total", {"tier": "host"}) == 3
    assert value("tokenspeed_tier_hit_tokens_total", {"tier": "device"}) == 2, "never less"


async def test_sequences_of_one_request_are_told_apart(front: Front) -> None:
    await responses(front.stub.Generate(request(n=3, max_new_tokens=2)))
    assert sorted(event.index for event in of(front, SequenceStarted)) == [0, 1, 2]
    assert sorted(event.index for event in of(front, TokensGenerated)) == [0, 0, 1, 1, 2, 2]
    [finished] = of(front, RequestFinished)
    assert (finished.output_tokens, finished.cached_tokens) == (6, 9)
    assert (finished.prompt_tokens, finished.started_prompt_tokens) == (3, 9)
    value = front.metrics.registry.get_sample_value
    assert value("tokenspeed_prompt_tokens_total") == finished.started_prompt_tokens
    assert value("tokenspeed_prefix_hit_tokens_total") == finished.cached_tokens


async def test_guesses_are_told_of_their_request(
    front: Front, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """As a sum over its sequences; also where a stop string ended them before the engine did."""
    caplog.set_level(logging.INFO, "tokenspeed.observe.usage_log")
    await responses(front.stub.Generate(request(max_new_tokens=2)))
    front.engine.guesses = (5, 3)
    await responses(front.stub.Generate(request(n=2, max_new_tokens=2)))
    words = tokenizer.encode("hello own fox jumps hello").ids
    front.engine.script = lambda submit: ([token] for token in words)
    await responses(front.stub.Generate(request(stop=["fox"])))
    told = {e.request: (e.drafted_tokens, e.accepted_tokens) for e in of(front, RequestFinished)}
    output = {e.request: e.output_tokens for e in of(front, RequestFinished)}
    assert told == {1: (0, 0), 2: (20, 12), 3: (5 * output[3], 3 * output[3])}
    assert 0 < output[3] < len(words)
    for event in of(front, RequestFinished):
        log_usage(event)
    assert "request 2 r1: length after " in caplog.text
    assert "s, 6 prompt tokens (6 cached), 4 output tokens, 12 of 20 guesses right\n" in caplog.text


async def test_the_log_says_why_there_is_no_answer(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line of bounded length, whatever the text is."""
    caplog.set_level(logging.INFO, "tokenspeed.observe.usage_log")
    await code_of(front.stub.Generate(request(n=65)))
    [finished] = of(front, RequestFinished)
    log_usage(finished)
    told = "0 of 0 guesses right; told: n is 65, but must be an integer from 1 to 64\n"
    assert f"s, 3 prompt tokens (0 cached), 0 output tokens, {told}" in caplog.text
    caplog.clear()
    log_usage(replace(finished, error="first\nrequest 8 forged\x1b[2J\u2028" + "x" * 1000))
    [record] = caplog.records
    text = record.getMessage()
    assert "told: first request 8 forged [2J xxx" in text
    assert text.endswith("xxx...")
    assert (len(text) < 450, text.isprintable()) == (True, True)


async def test_every_outcome(front: Front, monkeypatch: Any) -> None:
    await responses(front.stub.Generate(request(max_new_tokens=1)))
    await responses(front.stub.Generate(request(stop_token_ids=[13])))
    await code_of(front.stub.Generate(request(n=65)))
    front.engine.reject = Rejected(0, "never_fits", 70, 64)
    await code_of(front.stub.Generate(request()))
    front.engine.reject, front.engine.fail = None, "NaN in the logits"
    await code_of(front.stub.Generate(request()))
    front.engine.fail, front.engine.frozen = None, True
    call = front.stub.Generate(request())
    await eventually(lambda: front.engine.running == 1)
    assert (await code_of(front.stub.Generate(request())))[0] == grpc.StatusCode.ALREADY_EXISTS
    call.cancel()
    await eventually(lambda: front.engine.running == 0)
    call = front.stub.Generate(request())
    await eventually(lambda: front.engine.running == 1)
    await front.stub.Abort(pb.AbortRequest(request_id="r1"))
    await responses(call)
    monkeypatch.setattr(front.service, "_admit", lambda request_id, n: 1 / 0)
    await code_of(front.stub.Generate(request()))
    finished = of(front, RequestFinished)
    outcomes = ["length", "stop", "invalid", "invalid", "failed", "invalid", "cancelled", "abort"]
    assert [event.outcome for event in finished] == [*outcomes, "failed"]
    errors = [event.error or "" for event in finished]
    assert errors[0] == errors[1] == errors[6] == errors[7] == ""
    for error, text in zip(
        errors[2:6], ("n is 65", "never_fits", "NaN in the", "already running"), strict=True
    ):
        assert text in error
    assert "ZeroDivisionError" in errors[8]
    assert len(of(front, RequestReceived)) == len(finished) == len({e.request for e in finished})


def test_every_error_has_a_code_and_an_outcome() -> None:
    """A fault of the client, and nothing else, is invalid and refused for good."""
    listed = {kind: (code, outcome) for kind, code, outcome in service._CODES}
    assert listed.keys() == {*errors.RequestError.__subclasses__()}
    assert {outcome for _, outcome in listed.values()} <= {*OUTCOMES[4:]}
    own = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS}
    assert all((code in own) == (outcome == "invalid") for code, outcome in listed.values())


async def test_nothing_of_a_request_comes_after_its_end(front: Front) -> None:
    """A client leaves while tokens stream; the engine's last words about it are not told."""
    call = front.stub.Generate(request(max_new_tokens=100))
    await call.read()
    call.cancel()
    await eventually(lambda: front.engine.running == 0 and len(of(front, RequestFinished)) == 1)
    await responses(front.stub.Generate(request(max_new_tokens=2)))
    first = [event for event in front.events if getattr(event, "request", 0) == 1]
    assert isinstance(first[-1], RequestFinished)
    generated = sum(event.count for event in first if isinstance(event, TokensGenerated))
    assert first[-1].output_tokens == generated > 0
