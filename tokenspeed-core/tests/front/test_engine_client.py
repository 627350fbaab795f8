# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import aiohttp
import pytest
from tokenspeed.front.admin import AdminPort
from tokenspeed.front.engine_client import EngineClient
from tokenspeed.front.errors import EngineGone
from tokenspeed.front.finish import Finish
from tokenspeed.front.request import GenerationRequest, Limits
from tokenspeed.front.sampling_params import SamplingParams
from tokenspeed.messages import EngineLoading
from tokenspeed.observe.metrics import Metrics, MetricsPage
from tokenspeed.observe.observers import Observers

from .conftest import eventually
from .fake_engine import FakeEngine

LIMITS = Limits(max_model_len=128, vocab_size=512)
REQUEST = GenerationRequest.validated([10], SamplingParams(max_tokens=20, n=2), LIMITS)


def test_finish_is_the_schedulers() -> None:
    real = pytest.importorskip("tokenspeed._scheduler", reason="the C++ module is not built")
    assert {f.name: f.value for f in real.Finish} == {f.name: f.value for f in Finish}


async def test_one_message_a_tick_while_the_engine_works(address: str, engine: FakeEngine) -> None:
    """The first request of an idle engine is on its way at once; the others share a message."""
    engine.frozen = True
    async with EngineClient(address) as client:
        await client.wait_ready()
        streams = [client.open(REQUEST) for _ in range(3)]
        streams[0].abort(1)
        await eventually(lambda: engine.running == 5)
        assert [len(message.submits) for message in engine.messages] == [2, 4]
        assert [s.request for s in engine.submits] == [1, 2, 3, 4, 5, 6]
        assert engine.aborts == [2]


async def test_tokens_wait_for_a_slow_reader(address: str, engine: FakeEngine) -> None:
    async with EngineClient(address) as client:
        await client.wait_ready()
        stream = client.open(REQUEST)
        await eventually(lambda: client.alive == 0)
        news = await stream.take()
        assert sorted(d.index for d in news) == [0, 1]
        for delta in news:
            assert delta.tokens == list(range(11, 31))
            assert delta.finish == Finish.LENGTH
            assert delta.cached_tokens == 3


async def test_news_come_before_the_failure(address: str, engine: FakeEngine) -> None:
    async with EngineClient(address) as client:
        await client.wait_ready()
        engine.script = lambda submit: iter([[7]])
        stream = client.open(REQUEST)
        await eventually(lambda: len(stream._news) == 2)
        client.fail("gone for a test")
        assert [d.tokens for d in await stream.take()] == [[7], [7]]
        with pytest.raises(EngineGone, match="gone for a test"):
            await stream.take()
        with pytest.raises(EngineGone, match="gone for a test"):
            client.open(REQUEST)


async def test_death_while_loading(address: str) -> None:
    fake = FakeEngine(address, hold=True)
    fake.loading.append(EngineLoading("weights", 1, 2))
    fake.start()
    async with EngineClient(address) as client:
        waiting = asyncio.ensure_future(client.wait_ready())
        await eventually(lambda: client.loading is not None)
        fake.die()
        with pytest.raises(EngineGone):
            await asyncio.wait_for(waiting, 10)


async def test_ledgers_are_told_apart(address: str, engine: FakeEngine) -> None:
    async with EngineClient(address) as client:
        await client.wait_ready()
        ledgers = await asyncio.gather(client.ledger(), client.ledger(reset_cache=True))
        assert [ledger.cached for ledger in ledgers] == [4, 0]


async def test_an_answer_answers_the_questions_before_it_too(
    address: str, engine: FakeEngine
) -> None:
    """An engine that is busy reads several at once, and answers the last."""
    engine.unanswered = 2
    async with EngineClient(address) as client:
        await client.wait_ready()
        ledgers = await asyncio.wait_for(asyncio.gather(*(client.ledger() for _ in range(3))), 5)
        assert [ledger.cached for ledger in ledgers] == [4, 4, 4]


async def test_admin_port(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeEngine(address, hold=True)
    fake.loading.append(EngineLoading("weights", 63, 100))
    fake.start()
    async with EngineClient(address) as client, aiohttp.ClientSession() as http:
        no_observers = Observers([], reading_ids=[])
        admin = AdminPort(client, MetricsPage(Metrics(), client, no_observers))
        runner, port = await admin.start(0)

        async def get(path: str) -> tuple[int, str]:
            async with http.get(f"http://127.0.0.1:{port}{path}") as response:
                return response.status, await response.text()

        await eventually(lambda: client.loading is not None)
        status, text = await get("/ready")
        assert (status, "loading 63%" in text, '"bytes_done": 63' in text) == (503, True, True)
        assert (await get("/live"))[0] == 200

        fake.go.set()
        await client.wait_ready()
        admin.serving = True
        assert await get("/ready") == (200, "ready\n")
        status, text = await get("/debug/cache")
        assert (status, '"balanced": true' in text) == (200, True)
        host = {name: value for name, value in json.loads(text).items() if name[:5] == "host_"}
        assert host == {
            "host_total": 32,
            "host_free": 20,
            "host_cached": 11,
            "host_in_transfer": 1,
        }
        status, text = await get("/metrics")
        assert (status, "tokenspeed_running_sequences 0.0" in text) == (200, True)

        monkeypatch.setattr("tokenspeed.front.engine_client.STALL_S", 0.1)
        await asyncio.sleep(0.15)
        assert (await get("/live"))[0] == 200, "an idle engine is well"
        fake.frozen = True
        stream = client.open(REQUEST)
        await asyncio.sleep(0.15)
        status, text = await get("/live")
        assert (status, "2 sequences" in text) == (503, True)
        stream.close()
        assert (await get("/live"))[0] == 200

        fake.die()
        await eventually(lambda: client.gone is not None)
        for path in ("/live", "/ready", "/debug/cache"):
            status, text = await get(path)
            assert (status, "the engine is gone" in text) == (503, True)
        await runner.cleanup()


def test_no_torch_in_the_front() -> None:
    code = (
        "import sys, tokenspeed.front.server, tokenspeed.front.__main__;"
        "print({'torch', 'transformers', 'tokenspeed._scheduler'} & set(sys.modules))"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output == "set()\n"
