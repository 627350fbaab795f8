# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A step that does not end is said in the log, a request that is in none is named."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from harness import Answer, all_at_once, engine, submit
from tokenspeed._scheduler import Finish
from tokenspeed.engine import roll_call, watchdog
from tokenspeed.engine.grammar import GrammarLoader, Grammars, Loading
from tokenspeed.engine.speculation import Speculation
from tokenspeed.engine.watchdog import Activity, warn_of_hangs
from tokenspeed.messages import EngineInput, NewGrammar
from tokenspeed_sdk.contracts.platform import Device


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PATIENCE", 0.1)


def waited(caplog: pytest.LogCaptureFixture) -> None:
    deadline = time.monotonic() + 10
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)  # in which it might be said again


@pytest.mark.usefixtures("impatient")
def test_what_takes_too_long_is_said_once_with_the_kernels_and_where(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    waiting = Activity("waiting for the device")
    with warn_of_hangs([waiting], "linear@1 slow"), waiting:
        waited(caplog)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    text = record.getMessage()
    assert text.startswith("the step has run for 0 s, waiting for the device")
    assert "its kernels: linear@1 slow" in text
    assert "in waited" in capfd.readouterr().err


@pytest.mark.usefixtures("impatient")
def test_short_ones_are_not(caplog: pytest.LogCaptureFixture) -> None:
    waiting = Activity("waiting for the device")
    threads = threading.active_count()
    with warn_of_hangs([waiting], ""):
        for _ in range(30):
            with waiting:
                time.sleep(0.01)
        time.sleep(0.2)
    assert not caplog.records
    assert threading.active_count() == threads


@pytest.mark.usefixtures("impatient")
def test_the_loop_says_that_it_waits_for_the_device(
    tiny_llama: Path,
    cpu: Device,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine(tiny_llama, cpu) as built:
        wait = built.executor.wait

        def slow(step: object) -> None:
            if not caplog.records:
                waited(caplog)
            wait(step)  # type: ignore[arg-type]

        monkeypatch.setattr(built.executor, "wait", slow)
        built.run(all_at_once([submit(1, [5, 6, 7], 3)]))
    assert "waiting for the device" in caplog.records[0].getMessage()


def test_a_request_whose_pages_never_come_is_named(
    tiny_llama: Path, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third one's prefix lies on the host, and for a while no transfer ends."""
    monkeypatch.setattr(roll_call, "PATIENCE", 0.2)
    prompts = {1: list(range(1, 33)), 2: list(range(40, 80)), 3: list(range(1, 33))}
    until = 0.0

    def script(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        nonlocal until
        over = sum(answer.finish != Finish.NONE for answer in answers.values())
        if over == len(asked) < len(prompts):
            asked.append(over + 1)
            until = time.monotonic() + (0.6 if asked[-1] == 3 else 0)
            return EngineInput(submits=[submit(asked[-1], prompts[asked[-1]], 3)])
        return None

    asked: list[int] = []
    with engine(tiny_llama, cpu, pages=12, host_pages=40) as built:
        ended = built.executor.ended_transfers
        monkeypatch.setattr(
            built.executor,
            "ended_transfers",
            lambda: ended() if time.monotonic() > until else [],
        )
        mailbox = built.run(script)
    named = [output.stuck for output in mailbox.outputs if output.stuck]
    assert named == [{3: "has waited 0 s for its first step, and no step runs"}]
    assert mailbox.answers[3].tokens == mailbox.answers[1].tokens


def test_a_request_whose_grammar_never_comes_is_named(
    tiny_llama: Path, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its client has left."""
    monkeypatch.setattr(roll_call, "PATIENCE", 0.2)
    loader = GrammarLoader(lambda name: pytest.fail("nothing is loaded"))
    monkeypatch.setattr(loader, "load", lambda new: Loading())
    start = time.monotonic()

    def script(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        if step == 0:
            held = [NewGrammar(5, "one", b"")]
            return EngineInput(new_grammars=held, submits=[submit(1, [5, 6], 3, grammar=5)])
        if time.monotonic() - start > 0.6:
            return EngineInput(aborts=[1], stop=time.monotonic() - start > 1.2)
        return None

    with engine(tiny_llama, cpu) as built:
        mailbox = built.run(script, Grammars(loader))
    named = [output.stuck for output in mailbox.outputs if output.stuck]
    assert named == [{1: "has waited 0 s for its first step, and no step runs"}]
    assert mailbox.answers == {}


@pytest.mark.usefixtures("impatient")
def test_the_loop_says_that_it_follows_drafts(
    tiny_llama: Path,
    cpu: Device,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which is a plugin's code, as a grammar is."""
    advance = Speculation.advance

    def slow(speculation: Speculation, *arguments: Any) -> None:
        if not caplog.records:
            waited(caplog)
        advance(speculation, *arguments)

    monkeypatch.setattr(Speculation, "advance", slow)
    with engine(tiny_llama, cpu) as built:
        built.run(all_at_once([submit(1, [5, 6, 7], 3)]))
    assert "following grammars and drafts" in caplog.records[0].getMessage()
