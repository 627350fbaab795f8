# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How a front ends: it drains, or its engine dies and it says why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest
from tokenspeed.front import engine_client
from tokenspeed.front.engine_client import EngineClient
from tokenspeed.front.errors import EngineGone
from tokenspeed.front.grammars import FrontGrammar
from tokenspeed.plugins.plan import PluginPlan
from tokenspeed_sdk.contracts.grammar import Constraint
from tokenspeed_sdk.contracts.observer import RequestFinished

from .conftest import Front, eventually
from .fake_engine import FakeEngine
from .test_generate import code_of, request, responses


async def test_a_front_that_drains_refuses_what_comes_and_ends_what_runs(front: Front) -> None:
    front.engine.step_s = 0.02
    running = asyncio.create_task(responses(front.stub.Generate(request(max_new_tokens=20))))
    await eventually(lambda: front.engine.running == 1)
    drained = asyncio.create_task(front.service.drain(10))
    await asyncio.sleep(0)
    code, text = await code_of(front.stub.Generate(request("late", max_new_tokens=1)))
    assert code == grpc.StatusCode.UNAVAILABLE
    assert text == "the server is shutting down; send it to another one, or later"
    assert not drained.done()
    assert ended(front)[-1] == ("late", "rejected", text)
    _, [complete] = await running
    assert complete.completion_tokens == 20
    await asyncio.wait_for(drained, 5)


@pytest.mark.parametrize("stream", [True, False])
async def test_what_does_not_end_in_time_fails_with_the_reason(front: Front, stream: bool) -> None:
    front.engine.step_s = 0.02
    call = front.stub.Generate(request(stream=stream, max_new_tokens=1000))
    failed = asyncio.create_task(code_of(call))
    await eventually(lambda: front.engine.running == 1)
    start = time.monotonic()
    await front.service.drain(0.2)
    assert 0.2 <= time.monotonic() - start < 10
    code, text = await failed
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "shutting down and has waited 0.2 s for this request" in text
    await eventually(lambda: front.engine.running == 0)
    assert ended(front) == [("r1", "shutdown", text)]
    page = generate_latest(front.metrics.registry).decode()
    assert 'tokenspeed_requests_finished_total{outcome="shutdown"} 1.0' in page


async def test_who_hurries_a_front_cuts_off_what_runs(front: Front) -> None:
    front.engine.step_s = 0.02
    failed = asyncio.create_task(code_of(front.stub.Generate(request(max_new_tokens=1000))))
    await eventually(lambda: front.engine.running == 1)
    drained = asyncio.create_task(front.service.drain(600))
    await asyncio.sleep(0.3)
    assert not drained.done()
    front.service.hurry()
    await asyncio.wait_for(drained, 10)
    code, text = await failed
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "the server is shutting down and has waited 0." in text
    assert ended(front) == [("r1", "shutdown", text)]


async def test_what_is_compiled_or_waits_for_it_is_cut_off_too(
    serving: Callable[..., Any], grammar_plan: Callable[..., PluginPlan]
) -> None:
    async with serving(plugins=grammar_plan(one=50)) as front:
        calls = [
            asyncio.create_task(code_of(front.stub.Generate(request(f"r{i}", regex=f"slow {i}"))))
            for i in range(3)
        ]
        await eventually(lambda: len(front.service._compiling) == 3)
        await asyncio.wait_for(front.service.drain(0.2), 10)
        for code, text in await asyncio.gather(*calls):
            assert code == grpc.StatusCode.UNAVAILABLE
            assert "shutting down and has waited 0.2 s for this request" in text
        assert [outcome for _, outcome, _ in ended(front)] == ["shutdown"] * 3


async def test_what_is_compiled_in_the_moment_of_the_cut_is_cut_off_too(
    serving: Callable[..., Any],
    grammar_plan: Callable[..., PluginPlan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cut comes in the turn of the event loop in which it is compiled, before it goes on."""
    async with serving(plugins=grammar_plan(one=50)) as front:
        grammars = front.service._grammars
        grammar = await grammars.compile(Constraint("regex", "a"))
        made = asyncio.get_running_loop().create_future()

        async def compile_(constraint: Constraint, namespace: int = 0) -> FrontGrammar:
            return await made  # type: ignore[no-any-return]

        monkeypatch.setattr(grammars, "compile", compile_)
        call = asyncio.create_task(code_of(front.stub.Generate(request(regex="a"))))
        await eventually(lambda: len(front.service._compiling) == 1)
        made.set_result(grammar)
        async with asyncio.timeout(10):
            await front.service.drain(0)
        code, text = await call
        assert code == grpc.StatusCode.UNAVAILABLE
        assert "shutting down and has waited 0 s for this request" in text
        assert ended(front) == [("r1", "shutdown", text)]
        assert front.engine.submits == [], "the engine never hears of it"


def ended(front: Front) -> list[tuple[str, str, str | None]]:
    """(request id, outcome, error) of requests as they ended."""
    finished = (event for event in front.events if isinstance(event, RequestFinished))
    return [(event.request_id, event.outcome, event.error) for event in finished]


async def test_a_front_where_nothing_runs_is_drained_at_once(front: Front) -> None:
    await asyncio.wait_for(front.service.drain(60), 10)


@pytest.mark.parametrize(
    ("told", "cause", "most_s"),
    [
        ("killed by SIGKILL", "killed by SIGKILL", 1.9),
        ("", "its process closed the connection", 10),
        (None, "its process closed the connection", 1.9),
    ],
)
async def test_an_engine_that_dies_without_a_word_ends_with_what_its_parent_saw(
    address: str,
    engine: FakeEngine,
    told: str | None,
    cause: str,
    most_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_client, "_CAUSE_S", 2.0)  # how long it waits for a word at most
    words = ""
    async with EngineClient(address, told=None if told is None else lambda: words) as client:
        await asyncio.wait_for(client.wait_ready(), 5)
        start = time.monotonic()
        await asyncio.to_thread(engine.die)
        await asyncio.sleep(0.2)
        words = told or ""  # it comes a little later
        await eventually(lambda: client.gone is not None)
        assert time.monotonic() - start < most_s
        assert str(client.gone).startswith(f"the engine is gone: {cause}")
        with pytest.raises(EngineGone):
            await client.ledger()


async def test_a_front_on_a_dead_engine_is_drained(front: Front) -> None:
    call: Any = front.stub.Generate(request(max_new_tokens=100))
    front.engine.step_s = 0.02
    failed = asyncio.create_task(code_of(call))
    await eventually(lambda: front.engine.running == 1)
    await asyncio.to_thread(front.engine.die)
    code, _ = await failed
    assert code == grpc.StatusCode.UNAVAILABLE
    await asyncio.wait_for(front.service.drain(60), 10)
