# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The conformance suite of contract ``observer``: one line in a test file of the author.

from acme_journal import Journal
from tokenspeed_sdk.testing import observer_conformance

test_journal = observer_conformance(Journal)
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from types import MappingProxyType
from typing import TypeAlias

import pytest

from tokenspeed_sdk.contracts.observer import Event, ObserverFactory
from tokenspeed_sdk.testing.observer.events import make_events
from tokenspeed_sdk.testing.observer.hooks import check_hooks

START_SECONDS = 1.0
"""Making an observer may take so long: the start of the server waits for it."""

EVENT_SECONDS = 0.05
"""A hook may take so long for one event."""

END_SECONDS = 2.0
"""What an observer started must have ended so long after ``close``, as the server waits for it."""

_TRIES = 3

Check: TypeAlias = Callable[[ObserverFactory], None]
"""Takes the entry point. AssertionError says what is wrong."""


def check_start(factory: ObserverFactory) -> None:
    """It is made quickly."""
    spent = START_SECONDS
    for _ in range(_TRIES):
        begin = time.perf_counter()
        observer = factory()
        spent = min(spent, time.perf_counter() - begin)
        _close(observer)
    print(f"made in {spent * 1e3:.1f} ms")
    assert spent < START_SECONDS, f"making it takes {START_SECONDS:g} s or more"


def check_events(factory: ObserverFactory) -> None:
    """It takes every event of a server, and is quick."""
    _check_told(factory, make_events(token_ids=False))


def check_token_ids(factory: ObserverFactory) -> None:
    """The same with the ids of tokens."""
    _check_told(factory, make_events(token_ids=True))


def check_unused(factory: ObserverFactory) -> None:
    """It closes without having got any event, as when the engine does not start."""
    _on_a_thread(lambda: _close(factory()))


def check_end(factory: ObserverFactory) -> None:
    """No thread and no process that it started is there when it is closed."""
    before = _running()
    _tell(factory, make_events(token_ids=True))
    deadline = time.monotonic() + END_SECONDS
    while left := _running() - before:
        if time.monotonic() > deadline:
            names = ", ".join(sorted(each.name for each in left))
            raise AssertionError(f"still there after it is closed: {names}; end them in close()")
        time.sleep(0.01)


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        check.__name__.removeprefix("check_"): check
        for check in (
            check_hooks,
            check_start,
            check_events,
            check_token_ids,
            check_unused,
            check_end,
        )
    }
)
"""All that an observer must pass, by the name that pytest shows."""


def observer_conformance(factory: ObserverFactory) -> Callable[..., None]:
    """A parametrised test of an observer, which each check makes anew.

    Assign it to a name that starts with ``test_``. Each check is a test of its own:
    ``test_journal[events]``. As in a server, the observer is made on one thread, and a second one
    calls its hooks and, once, its ``close``.

    Args:
        factory: what the entry point in ``tokenspeed.observer`` names.
    """

    @pytest.mark.parametrize("check", list(CHECKS))
    def test(check: str) -> None:
        CHECKS[check](factory)

    return test


def _running() -> set[threading.Thread | BaseProcess]:
    """Threads of this process, and the processes that it started through multiprocessing."""
    return {*threading.enumerate(), *active_children()}


def _check_told(factory: ObserverFactory, events: Sequence[Event]) -> None:
    """An event is too slow if it is in every try: other processes use the machine too."""
    best = [float("inf")] * len(events)
    for _ in range(_TRIES):
        best = [*map(min, best, _tell(factory, events))]
        slowest = max(range(len(events)), key=best.__getitem__)
        if best[slowest] < EVENT_SECONDS:
            break
    text = f"the slowest of {len(events)} events takes {best[slowest] * 1e3:.2f} ms"
    print(f"{text}, all of them {sum(best) * 1e3:.1f} ms")
    assert best[slowest] < EVENT_SECONDS, (
        f"{text}, more than {EVENT_SECONDS * 1e3:g} ms: {events[slowest]}; hand heavy work to "
        "another process"
    )


def _tell(factory: ObserverFactory, events: Sequence[Event]) -> list[float]:
    """Seconds that each event took a new observer, which is closed at the end.

    AssertionError: a hook raised, or changed an event.
    """
    observer = factory()
    spent: list[float] = []

    def tell() -> None:
        for event in events:
            spent.append(_call(observer, event))
        _close(observer)

    _on_a_thread(tell)
    return spent


def _call(observer: object, event: Event) -> float:
    """Seconds that the hook takes; 0 without one."""
    hook = getattr(observer, event.hook, None)
    if hook is None:
        return 0.0
    before = copy.deepcopy(event)
    begin = time.perf_counter()
    try:
        hook(event)
    except BaseException as error:
        raise AssertionError(f"{event.hook} raises {error!r} for {event}") from error
    spent = time.perf_counter() - begin
    assert event == before, f"{event.hook} changes its event, which other observers get too"
    return spent


def _close(observer: object) -> None:
    """As at the server's end: once, if there is one."""
    close = getattr(observer, "close", None)
    if close is None:
        return
    try:
        close()
    except BaseException as error:
        raise AssertionError(f"close raises {error!r}") from error


def _on_a_thread(work: Callable[[], None]) -> None:
    """Run it on a thread of its own, and raise here what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="observer under test", daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
