# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Constraints on their way to the engine: compiled apart, once, in time, or refused alone."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import msgspec
import pytest
import uvloop
from tokenspeed.front import compiler, engine_client, errors, grammars
from tokenspeed.front.errors import CompilerBusy, CompilerFailed, InvalidRequest
from tokenspeed.front.grammars import Grammars
from tokenspeed.front.model_folder import ModelFolder
from tokenspeed.grammar.worker import Setup, framed
from tokenspeed.plugins.plan import PluginPlan
from tokenspeed_sdk.contracts.grammar import Constraint
from tokenspeed_sdk.contracts.observer import RequestFinished

from .conftest import eventually
from .test_generate import code_of, request, responses


@pytest.fixture
async def made(
    grammar_plan: Callable[..., PluginPlan], model_folder: Path
) -> AsyncIterator[Grammars]:
    async with Grammars(grammar_plan(one=50), ModelFolder(str(model_folder)), 512) as running:
        yield running


def regex(text: str) -> Constraint:
    return Constraint("regex", text)


async def test_equal_constraints_are_compiled_once(made: Grammars) -> None:
    first, *others = await asyncio.gather(*(made.compile(regex("a")) for _ in range(5)))
    assert first.compiled.data == b"one a"
    assert all(other is first for other in others)
    assert await made.compile(regex("a")) is first
    assert (await made.compile(regex("b"))).number != first.number


async def test_a_bad_one_is_refused_with_the_reason_and_the_next_goes_on(made: Grammars) -> None:
    for text, why in (
        ("bad", "one says: that is bad"),
        ("decline", "one does not honour that at #"),
        ("raise", "ZeroDivisionError"),
    ):
        for _ in range(2):  # the second time it is known
            with pytest.raises(InvalidRequest, match=why) as caught:
                await made.compile(regex(text))
            assert caught.value.field == "regex"
    assert (await made.compile(regex("a"))).compiled.backend == "one"


async def test_one_that_takes_too_long_is_ended(
    made: Grammars, starts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await made.compile(regex("a"))
    monkeypatch.setattr(compiler, "COMPILE_S", 1.0)
    begin = time.monotonic()
    slow = asyncio.create_task(made.compile(regex("slow")))
    after = asyncio.create_task(made.compile(regex("b")))
    longest = 0.0
    while not slow.done():  # nobody else waits meanwhile
        before = time.monotonic()
        await asyncio.sleep(0.005)
        longest = max(longest, time.monotonic() - before)
    with pytest.raises(InvalidRequest, match=r"took more than 1 s"):
        await slow
    assert time.monotonic() - begin < 10
    assert longest < 0.8
    monkeypatch.setattr(compiler, "COMPILE_S", 10.0)
    assert (await after).compiled.data == b"one b"
    assert len(starts) == 2, "it is not tried again: that would take others' turn for twice as long"


async def test_a_constraint_that_kills_its_compiler_twice_is_refused(
    made: Grammars, starts: list[int]
) -> None:
    for text in ("die", "accept: die"):
        begin = len(starts)
        for _ in range(2):  # the second time it is known
            with pytest.raises(InvalidRequest, match=r"2 times, .* status 3 while it worked on"):
                await made.compile(regex(text))
        assert len(starts) - begin == 2
    assert (await made.compile(regex("a"))).compiled.data == b"one a"


async def test_a_compiler_that_is_killed_at_work_works_on_in_a_new_process(
    made: Grammars, starts: list[int], tmp_path: Path
) -> None:
    """The constraint is not at fault: it kills the first process alone."""
    text = f"ends 1 {tmp_path / 'count'}"
    assert (await made.compile(regex(text))).compiled.data == f"one {text}".encode()
    assert len(starts) == 2


async def test_what_the_compiler_gave_up_is_refused_for_a_while_only(
    made: Grammars, jobs: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One over which it was killed, and one for which it was late; a backend's word is kept."""
    await made.compile(regex("a"))
    killed, late = f"ends 2 {tmp_path / 'count'}", "sleep 1.5"
    given = {killed: "it ended 2 times", late: "took more than 1 s", "bad": "that is bad"}
    monkeypatch.setattr(compiler, "COMPILE_S", 1.0)
    for _ in range(2):  # the second time it is known
        for text, why in given.items():
            with pytest.raises(InvalidRequest, match=why) as caught:
                await made.compile(regex(text))
            again = re.search(r"; simplify it, or send it again in ([0-9]+) s$", str(caught.value))
            if text == "bad":
                assert again is None
            else:
                assert again is not None
                assert grammars.REFUSED_S / 2 < int(again[1]) <= grammars.REFUSED_S
    assert jobs == ["a", *given]
    monkeypatch.setattr(compiler, "COMPILE_S", 10.0)  # the machine is well again
    monkeypatch.setattr(grammars, "REFUSED_S", 0.0)  # and the time is over
    for text in (killed, late):
        made_anew = await made.compile(regex(text))
        assert made_anew.compiled.data == f"one {text}".encode()
        assert await made.compile(regex(text)) is made_anew
    with pytest.raises(InvalidRequest, match="that is bad"):
        await made.compile(regex("bad"))
    assert jobs == ["a", *given, killed, late]
    assert made._bytes == sum(grammars._size(*each) for each in made._kept.items())


SICK = """
    import os, pathlib
    from tokenspeed_sdk.contracts.probe import Accept

    class Backend:
        name = {name!r}
        def accept(self, constraint):
            return Accept({score}, "ready")
        def open(self, vocabulary):
            {ill}
        def compile(self, constraint):
            return b"made"
"""


@pytest.mark.parametrize(
    ("ill", "starts_", "why"),
    [
        ("os._exit(5)", 2, "it ended 2 times, at last with status 5 before it worked on one"),
        ("raise OSError('no memory')", 1, "sick cannot be opened: OSError: no memory"),
        ("while True: pass", 1, "opening it took more than 2 s"),
        ("assert False, vocabulary", 1, "sick cannot be opened: AssertionError"),
    ],
)
async def test_what_every_constraint_would_meet_is_no_fault_of_the_client(
    serving: Callable[..., Any],
    grammar_plan: Callable[..., PluginPlan],
    monkeypatch: pytest.MonkeyPatch,
    starts: list[int],
    ill: str,
    starts_: int,
    why: str,
) -> None:
    monkeypatch.setattr(compiler, "OPEN_S", 2.0)
    plan = grammar_plan(SICK.replace("{ill}", ill), sick=50)
    async with serving(plugins=plan) as front:
        code, text = await code_of(front.stub.Generate(request(regex="a")))
        assert code == grpc.StatusCode.UNAVAILABLE
        assert text.startswith(f"the grammar compiler failed: {why}")
        assert text.endswith("; try again later")
        assert len(starts) == starts_
        assert not front.service._grammars._kept, "it may be able the next time"
        [ended] = [event for event in front.events if isinstance(event, RequestFinished)]
        assert (ended.outcome, ended.error) == ("failed", text)


async def test_a_tokenizer_that_cannot_be_read_is_no_fault_of_the_client(
    grammar_plan: Callable[..., PluginPlan], model_folder: Path, tmp_path: Path
) -> None:
    shutil.copy(model_folder / "config.json", tmp_path)
    async with Grammars(grammar_plan(one=50), ModelFolder(str(tmp_path)), 512) as made:
        with pytest.raises(CompilerFailed, match=r"the grammar compiler failed: .*tokenizer\.json"):
            await made.compile(regex("a"))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_compiler_that_was_killed_while_idle_costs_nobody_a_request(
    grammar_plan: Callable[..., PluginPlan], model_folder: Path, run: Any
) -> None:
    """In both event loops: they tell of a closed pipe in different ways."""

    async def outlive() -> None:
        async with Grammars(grammar_plan(one=50), ModelFolder(str(model_folder)), 512) as made:
            await made.compile(regex("a"))
            process = made._compiler._process
            assert process is not None
            process.kill()
            await process.wait()
            assert (await made.compile(regex("b"))).compiled.data == b"one b"
            process = made._compiler._process
            assert process is not None
            process.kill()  # and asked again before anybody noticed
            await asyncio.sleep(0)
            assert (await made.compile(regex("c"))).compiled.data == b"one c"
            assert (await made.compile(regex("d"))).compiled.data == b"one d"

    run(outlive())


async def test_a_compiler_that_hangs_while_idle_is_replaced(
    made: Grammars, starts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the limit of compiling, not of opening; and nobody is told that it was opening."""
    await made.compile(regex("a"))
    monkeypatch.setattr(compiler, "COMPILE_S", 3.0)
    process = made._compiler._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    assert (await made.compile(regex("b"))).compiled.data == b"one b"
    assert 3.0 <= time.monotonic() - begin < compiler.OPEN_S / 2
    assert (process.returncode, len(starts)) == (-signal.SIGKILL, 2)
    assert (await made.compile(regex("c"))).compiled.data == b"one c"
    assert len(starts) == 2


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_compiler_that_closes_its_input_is_one_that_ended(run: Any) -> None:
    async def write() -> None:
        process = await asyncio.create_subprocess_exec("true", stdin=asyncio.subprocess.PIPE)
        await process.wait()
        with suppress(ConnectionError):  # the only error; asyncio drops what is written
            for _ in range(10):
                compiler._write(process, b"x" * 100_000)
                await asyncio.sleep(0.01)

    run(write())


async def test_what_is_kept_is_bounded(made: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MAX_ENTRIES", 3)
    first = await made.compile(regex("1"))
    for text in ("2", "3"):
        await made.compile(regex(text))
    assert await made.compile(regex("1")) is first, "the latest are kept"
    second = await made.compile(regex("2"))
    for text in ("4", "5"):
        await made.compile(regex(text))
    assert await made.compile(regex("2")) is second
    assert await made.compile(regex("1")) is not first, "it made room"
    monkeypatch.setattr(grammars, "MAX_BYTES", 1 << 20)
    await made.compile(regex("large"))
    assert made._bytes <= 1 << 20
    monkeypatch.setattr(grammars, "MAX_COMPILED", 1 << 10)
    with pytest.raises(InvalidRequest, match="takes more than"):
        await made.compile(regex("large too"))


async def test_a_request_that_leaves_takes_nothing_from_others(made: Grammars) -> None:
    leaving = asyncio.create_task(made.compile(regex("a")))
    staying = asyncio.create_task(made.compile(regex("a")))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).compiled.data == b"one a"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Process ids of compilers, as they are started."""
    ids: list[int] = []
    start = compiler.Compiler._start

    async def counted(self: compiler.Compiler) -> asyncio.subprocess.Process:
        process = await start(self)
        ids.append(process.pid)
        return process

    monkeypatch.setattr(compiler.Compiler, "_start", counted)
    return ids


@pytest.fixture
def jobs(made: Grammars, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that the compiler was given."""
    given: list[str] = []
    compile_ = made._compiler.compile

    async def listening(constraint: Constraint) -> Any:
        given.append(constraint.text)
        return await compile_(constraint)

    monkeypatch.setattr(made._compiler, "compile", listening)
    return given


async def test_what_nobody_waits_for_is_not_begun(
    made: Grammars, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await made.compile(regex("a"))
    monkeypatch.setattr(compiler, "COMPILE_S", 0.5)
    first = asyncio.create_task(made.compile(regex("slow")))
    await eventually(lambda: jobs == ["a", "slow"])
    left = [asyncio.create_task(made.compile(regex(f"slow {i}"))) for i in range(20)]
    twice = [asyncio.create_task(made.compile(regex("b"))) for _ in range(2)]
    await eventually(lambda: len(made._pending) == 22)
    for task in [*left, twice[0]]:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert {constraint.text for _, constraint in made._pending} == {"slow", "b"}
    again = asyncio.create_task(made.compile(regex("slow 3")))  # while the first is on its way out
    first.cancel()  # it is begun, and ends in its time
    with pytest.raises(InvalidRequest, match="took more than"):
        await again
    assert (await twice[1]).compiled.data == b"one b"
    assert jobs == ["a", "slow", "b", "slow 3"]
    assert not made._pending


async def test_who_finds_the_compiler_busy_is_told_so(made: Grammars, jobs: list[str]) -> None:
    known = await made.compile(regex("a"))
    made._max_waiting = 2
    waiting = [asyncio.create_task(made.compile(regex(f"slow {i}"))) for i in (0, 1, 1)]
    await eventually(lambda: len(made._pending) == 2)
    for _ in range(2):
        with pytest.raises(CompilerBusy, match="busy: 2 constraints wait for it; try again later"):
            await made.compile(regex("b"))
    assert await made.compile(regex("a")) is known
    for task in waiting[1:]:
        task.cancel()
    await asyncio.gather(*waiting[1:], return_exceptions=True)
    place = asyncio.create_task(made.compile(regex("b")))
    await eventually(lambda: len(made._pending) == 2)
    assert not place.done()
    for task in (waiting[0], place):
        task.cancel()
    assert jobs == ["a", "slow 0"]


async def test_namespaces_share_nothing_that_is_compiled(made: Grammars, jobs: list[str]) -> None:
    """So that nobody learns by the time it takes what another tenant has asked for."""
    mine = await made.compile(regex("a"), 1)
    for text, namespace in (("a", 2), ("bad", 1), ("bad", 2)):
        with suppress(InvalidRequest):
            assert (await made.compile(regex(text), namespace)).number != mine.number
    both = (made.compile(regex("b"), namespace) for namespace in (1, 2, 1, 2))
    first, second, *same = await asyncio.gather(*both)
    assert first is not second
    assert same == [first, second]
    assert await made.compile(regex("a"), 1) is mine
    assert jobs == ["a", "a", "bad", "bad", "b", "b"]


async def test_a_busy_compiler_refuses_its_request_alone(
    serving: Callable[..., Any], grammar_plan: Callable[..., PluginPlan]
) -> None:
    async with serving(plugins=grammar_plan(one=50)) as front:
        front.service._grammars._max_waiting = 1
        slow = asyncio.create_task(code_of(front.stub.Generate(request("s", regex="slow"))))
        await eventually(lambda: len(front.service._compiling) == 1)
        code, text = await code_of(front.stub.Generate(request("more", regex="a")))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the grammar compiler is busy" in text
        await responses(front.stub.Generate(request(max_new_tokens=1)))
        slow.cancel()


async def test_a_salt_is_part_of_what_a_constraint_is_found_by(
    serving: Callable[..., Any], grammar_plan: Callable[..., PluginPlan]
) -> None:
    async with serving(plugins=grammar_plan(one=50)) as front:
        for index, salt in enumerate(("acme", "acme", "other")):
            asked = request(f"s={salt},{index}", max_new_tokens=1, regex="a")
            await drain(front.stub.Generate(asked))
        a, b, c = (submit.grammar for submit in front.engine.submits)
        assert a == b != c


async def test_the_engine_gets_a_grammar_once_and_submits_that_name_it(
    serving: Callable[..., Any], grammar_plan: Callable[..., PluginPlan]
) -> None:
    async with serving(plugins=grammar_plan(one=50)) as front:
        for text in ("a", "a", "b"):
            await responses(front.stub.Generate(request(n=2, max_new_tokens=1, regex=text)))
        sent = [new for message in front.engine.messages for new in message.new_grammars]
        assert [(new.backend, new.data) for new in sent] == [("one", b"one a"), ("one", b"one b")]
        a, b = (new.number for new in sent)
        assert [submit.grammar for submit in front.engine.submits] == [a] * 4 + [b] * 2
        await responses(front.stub.Generate(request(max_new_tokens=1)))
        assert front.engine.submits[-1].grammar == 0


async def test_the_engine_keeps_no_more_than_there_is_room_for(
    serving: Callable[..., Any],
    grammar_plan: Callable[..., PluginPlan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_client, "MAX_GRAMMARS", 2)
    async with serving(plugins=grammar_plan(one=50)) as front:
        for text in ("a", "b", "a", "c", "b"):
            await responses(front.stub.Generate(request(max_new_tokens=1, regex=text)))
        messages = front.engine.messages
        new = {g.number: g.data for m in messages for g in m.new_grammars}
        old = [new[number] for m in messages for number in m.old_grammars]
        assert old == [b"one b", b"one a"]
        assert [new[s.grammar] for s in front.engine.submits][-1] == b"one b"


async def drain(call: Any) -> None:
    async for _ in call:
        pass


async def test_a_grammar_that_goes_and_is_named_again_in_one_message_stays(
    serving: Callable[..., Any],
    grammar_plan: Callable[..., PluginPlan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_client, "MAX_GRAMMARS", 2)
    async with serving(plugins=grammar_plan(one=50)) as front:
        for text in ("a", "b"):
            await responses(front.stub.Generate(request(max_new_tokens=1, regex=text)))
        both = (request(f"r{i}", max_new_tokens=1, regex=t) for i, t in enumerate("abcabc"))
        await asyncio.gather(*(drain(front.stub.Generate(each)) for each in both))
        held: set[int] = set()
        for message in front.engine.messages:  # as the engine does
            held |= {grammar.number for grammar in message.new_grammars}
            assert {submit.grammar for submit in message.submits} <= held
            held -= set(message.old_grammars)
        await responses(front.stub.Generate(request(max_new_tokens=1, regex="a")))
        assert front.engine.submits[-1].grammar


async def test_a_refused_constraint_ends_its_request_alone(
    serving: Callable[..., Any], grammar_plan: Callable[..., PluginPlan]
) -> None:
    async with serving(plugins=grammar_plan(one=50)) as front:
        running = asyncio.create_task(responses(front.stub.Generate(request(max_new_tokens=40))))
        code, text = await code_of(front.stub.Generate(request("bad", regex="bad")))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert text == "regex is 'bad': one says: that is bad"
        await running
        await eventually(lambda: front.engine.running == 0)


async def test_a_refusal_that_repeats_a_long_constraint_is_cut_to_what_a_client_can_read(
    serving: Callable[..., Any], grammar_plan: Callable[..., PluginPlan]
) -> None:
    """The longest text, too: each of its characters is written with 12 in a header."""
    repeats = SICK.replace("{ill}", "return self").replace(
        'return b"made"', "raise ValueError(f'look at {{constraint.text}}: it is bad')"
    )
    async with serving(plugins=grammar_plan(repeats, sick=50)) as front:
        code, text = await code_of(front.stub.Generate(request(regex="\U0001f389" * 50_000)))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert len(text) == errors.MAX_TEXT
        assert "look at \U0001f389" in text
        assert text.endswith("\U0001f389: it is bad")
        assert len(quote(text)) < 8 << 10


async def test_who_waits_for_a_compiler_has_a_place_in_the_queue(
    serving: Callable[..., Any], grammar_plan: Callable[..., PluginPlan]
) -> None:
    async with serving(plugins=grammar_plan(one=50), max_queue=1) as front:
        slow = [
            asyncio.create_task(code_of(front.stub.Generate(request(f"s{i}", regex=f"slow {i}"))))
            for i in range(9)
        ]
        await eventually(lambda: len(front.service._compiling) == 9)
        code, text = await code_of(front.stub.Generate(request("more", regex="a")))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED, text
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        await eventually(lambda: not front.service._compiling)


async def test_a_deadline_holds_for_compiling_too(
    serving: Callable[..., Any], grammar_plan: Callable[..., PluginPlan]
) -> None:
    async with serving(plugins=grammar_plan(one=50), request_timeout=0.5) as front:
        code, _ = await code_of(front.stub.Generate(request(regex="slow")))
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert front.engine.submits == []


def test_the_compiler_ends_with_who_started_it(model_folder: Path) -> None:
    """By the end of its input; and at once, where the parent is gone already."""
    setup = Setup(os.getpid(), PluginPlan.make("fake", ()), str(model_folder), 512)
    orphan = msgspec.structs.replace(setup, parent=1)
    for said, status in ((setup, 0), (orphan, 1)):
        ended = subprocess.run(
            [sys.executable, "-m", "tokenspeed.grammar.worker"],
            input=framed(msgspec.msgpack.encode(said)),
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (status, b"")
