# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Checks of a device's streams and events."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle, islice

import torch

from tokenspeed_sdk.contracts.platform import Event, Stream
from tokenspeed_sdk.testing.platform.subject import Subject, raised_by, work_of

_TICK = 0.005
_FAULT = "this work fails on purpose"


def _fail() -> None:
    raise ValueError(_FAULT)


def check_at_once(subject: Subject) -> None:
    """``run`` returns before the work has ended."""
    load = subject.load
    with subject.stream() as stream:
        stream.run(load)
        event = stream.record()
        assert not event.done(), (
            "run() returns when the work has ended: it must queue it, on a thread of its own if "
            "the device has no queue"
        )


def check_order(subject: Subject) -> None:
    """Work runs in the order in which it was queued, also behind work that takes long."""
    load = subject.load
    value = subject.device.allocate((64,), subject.device.capabilities.dtypes[0])

    def load_and_add() -> None:
        load()
        value.add_(1)

    steps = (work_of(value.mul_, 2), work_of(value.add_, 1))
    with subject.stream() as stream:
        stream.run(load_and_add)
        for step in islice(cycle(steps), 5):
            stream.run(step)
        found = subject.read(stream, value)
    expected = 14  # each + 1, then * 2
    assert bool((found == expected).all()), f"work runs out of order: {found[0]}, not {expected}"


def check_events(subject: Subject) -> None:
    """An event is done when the work before it is, whatever comes behind; one may wait again."""
    load = subject.load
    with subject.stream() as stream:
        early = stream.record()
        stream.run(load)
        late = stream.record()
        early.wait()
        assert early.done(), "done() is False after wait() has returned"
        assert not late.done(), "an event is done before the work in front of it, or done() blocks"
        late.wait()
        assert late.done(), "wait() returns before the work in front of the event has ended"
        late.wait()


def check_waits_without_gil(subject: Subject) -> None:
    """Any thread may wait, and other threads run meanwhile."""
    load, ticks = subject.load, 0
    with subject.stream() as stream, ThreadPoolExecutor(1) as waiter:
        stream.run(load)
        waiting = waiter.submit(_wait, stream.record())
        while not waiting.done():
            time.sleep(_TICK)
            ticks += 1
        spent = waiting.result()
    assert ticks >= int(spent / _TICK / 8), (
        f"another thread ran {ticks} times while wait() blocked for {spent:.2f} s: it holds the GIL"
    )


def _wait(event: Event) -> float:
    """Seconds that it takes."""
    begin = time.perf_counter()
    event.wait()
    return time.perf_counter() - begin


def check_errors(subject: Subject) -> None:
    """What work raises comes out of ``run`` or of the next ``wait``, once; later work runs."""
    value = subject.device.allocate((64,), "int64")
    with subject.stream() as stream:
        before = stream.record()
        _check_raises(stream)
        before.wait()
        stream.run(work_of(value.fill_, 5))
        found = subject.read(stream, value)
    assert bool((found == 5).all()), "work queued behind work that failed does not run"


def _check_raises(stream: Stream) -> None:
    """Queue work that fails and wait for it."""

    def run_and_wait() -> None:
        stream.run(_fail)
        stream.record().wait()

    error = raised_by(run_and_wait)
    assert error is not None, "neither run() nor wait() raises what the work raised"
    same = isinstance(error, ValueError) and str(error) == _FAULT
    assert same, f"{error!r} is raised instead of what the work raised"


def check_two_streams(subject: Subject) -> None:
    """A stream neither waits for the work of another one nor raises its errors."""
    load = subject.load
    value = subject.device.allocate((64,), "int64")
    with subject.stream() as busy, subject.stream() as other:
        with suppress(ValueError):
            busy.run(_fail)
        busy.run(load)
        event = busy.record()
        other.run(work_of(value.fill_, 5))
        found = subject.read(other, value)
        assert bool((found == 5).all()), "work of a second stream does not run"
        # A device with a queue of its own may be too busy for both.
        assert subject.launches or not event.done(), "a stream waits for the work of another one"
        with suppress(ValueError):
            event.wait()


def check_close(subject: Subject) -> None:
    """``close`` waits for what is queued, may be called again, and leaves no thread behind."""
    load, before = subject.load, set(threading.enumerate())
    ones, found = (
        subject.device.allocate((64,), "int64"),
        subject.device.host_buffer((64,), "int64"),
    )
    ones.fill_(1)
    assert bool(ones.cpu().all())  # and so they are there
    stream = subject.device.stream()
    stream.run(load)
    stream.run(work_of(found.copy_, ones, non_blocking=True))
    stream.close()
    assert torch.equal(found, torch.ones_like(found)), "close() does not wait for queued work"
    stream.close()
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not left, f"close() leaves threads behind: {', '.join(left)}"
