# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Streams and events of the CPU device: what the sdk's suite in test_platform.py does not ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tokenspeed_cpu.stream import CpuStream


@pytest.fixture
def stream() -> Iterator[CpuStream]:
    made = CpuStream()
    yield made
    made.close()


def failing(message: str) -> None:
    raise ValueError(message)


def test_work_runs_in_order_on_one_other_thread(stream: CpuStream) -> None:
    seen: list[tuple[int, int]] = []
    for i in range(50):
        stream.run(lambda i=i: seen.append((i, threading.get_ident())))
    stream.record().wait()
    assert [i for i, _ in seen] == list(range(50))
    assert {thread for _, thread in seen} != {threading.get_ident()}
    assert len({thread for _, thread in seen}) == 1


def test_later_work_runs_and_is_not_poisoned(stream: CpuStream) -> None:
    ran: list[str] = []
    stream.run(lambda: failing("step 1"))
    first = stream.record()
    stream.run(lambda: ran.append("step 2"))
    second = stream.record()
    with pytest.raises(ValueError, match="step 1"):
        first.wait()
    second.wait()
    assert ran == ["step 2"]
    third = stream.record()
    third.wait()


def test_an_unreported_error_reaches_later_events(stream: CpuStream) -> None:
    stream.run(lambda: failing("lost"))
    stream.run(lambda: None)
    stream.record()
    second = stream.record()
    with pytest.raises(ValueError, match="lost"):
        second.wait()


def test_waiting_again_raises_again(stream: CpuStream) -> None:
    stream.run(lambda: failing("again"))
    event = stream.record()
    for _ in range(2):
        with pytest.raises(ValueError, match="again"):
            event.wait()


def test_two_errors_are_reported_one_event_each(stream: CpuStream) -> None:
    stream.run(lambda: failing("first"))
    stream.run(lambda: failing("second"))
    events = [stream.record() for _ in range(3)]
    for event, message in zip(events, ("first", "second"), strict=False):
        with pytest.raises(ValueError, match=message):
            event.wait()
    events[2].wait()


def test_work_that_exits_does_not_end_the_thread(stream: CpuStream) -> None:
    def leave() -> None:
        raise SystemExit(3)

    stream.run(leave)
    with pytest.raises(SystemExit):
        stream.record().wait()
    ran: list[int] = []
    stream.run(lambda: ran.append(1))
    stream.record().wait()
    assert ran == [1]


def test_close_waits_and_is_idempotent() -> None:
    stream = CpuStream()
    ran: list[int] = []
    stream.run(lambda: time.sleep(0.02))
    stream.run(lambda: ran.append(1))
    event = stream.record()
    stream.close()
    stream.close()
    assert ran == [1]
    assert event.done()
    with pytest.raises(RuntimeError, match="closed"):
        stream.run(lambda: None)
    with pytest.raises(RuntimeError, match="closed"):
        stream.record()


def test_many_threads_wait_for_one_event(stream: CpuStream) -> None:
    gate = threading.Event()
    stream.run(lambda: gate.wait(5) and None)
    event = stream.record()
    woken: list[int] = []
    threads = [threading.Thread(target=lambda: (event.wait(), woken.append(1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(5)
    assert len(woken) == 4
