# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Requests that are stuck are named in the log, by the ids that clients know."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tokenspeed.front import engine_client, watchdog
from tokenspeed.front.watchdog import warn_of_silence
from tokenspeed.messages import EngineOutput

from .conftest import Front, eventually
from .test_generate import request


async def test_a_request_that_the_engine_finds_stuck_is_named(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    front.engine.frozen = True
    call = front.stub.Generate(request("chatcmpl-7", n=2, max_new_tokens=5))
    await eventually(lambda: front.client.alive == 2)
    how = "has been in no step for 31 s, though others are"
    front.client._dispatch(EngineOutput(stuck={2: how, 99: how}))
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [f"request 1 chatcmpl-7 (sequence 2 of 2) is stuck: it {how}"]
    call.cancel()


async def test_a_silent_engine_is_said_once_with_whose_work_it_has(
    front: Front, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_client, "STALL_S", 0.1)
    monkeypatch.setattr(watchdog, "LOOK_S", 0.02)
    watch = asyncio.create_task(warn_of_silence(front.client))
    await asyncio.sleep(0.3)
    assert not caplog.records, "it has nothing to say of"
    front.engine.frozen = True
    call = front.stub.Generate(request("chatcmpl-7", n=10, max_new_tokens=5))
    await eventually(lambda: bool(caplog.records))
    await asyncio.sleep(0.2)
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith("the engine has said nothing for 0 s; it has request 1 chatcmpl-7 (")
    assert "sequence 8 of 10" in text
    assert text.endswith("; and 2 more")
    call.cancel()
    watch.cancel()
