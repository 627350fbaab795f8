# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The observer kit finds faults, and the events that it tells are those of a server."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from itertools import groupby
from typing import Any

import pytest
from tokenspeed_sdk.contracts.observer import EVENTS, HOOKS, OUTCOMES, Event, ObserverHooks
from tokenspeed_sdk.testing.observer.events import READY, make_events
from tokenspeed_sdk.testing.observer.suite import CHECKS

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.rule("R19")


class Sound:
    """Has every hook, a public attribute that is no method, and a thread that it ends."""

    limit = 3

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._end.wait, name="sound")
        self._thread.start()

    def _take(self, event: Event) -> str:
        self._events.append(event)
        return "what a hook returns is discarded"

    def close(self) -> None:
        assert not self._end.is_set(), "closed twice"
        self._end.set()
        self._thread.join()


for hook in HOOKS:
    setattr(Sound, hook, lambda self, event: self._take(event))


class One:
    """Has one hook and no close."""

    def request_finished(self, event: Any) -> None: ...


def having(base: type = One, **methods: Any) -> Callable[[], object]:
    """An observer some of whose methods are others."""
    return type("Faulty", (base,), methods)


def raising(when: Callable[[Any], bool]) -> Callable[[object, Any], None]:
    """A hook that raises at some events."""

    def hook(self: object, event: Any) -> None:
        assert not when(event), "not made for this"

    return hook


async def lazy(self: object, event: Event) -> None: ...


def leave(self: object, *_: object) -> None:
    raise SystemExit(3)


def change(self: object, event: Event) -> None:
    object.__setattr__(event, "error", "changed")


def start_a_thread(self: object) -> None:
    threading.Thread(target=time.sleep, args=(3,), name="forgotten", daemon=True).start()


def need_an_event(self: Any) -> None:
    self.first.close()


def slow_at_invalid(self: object, event: Any) -> None:
    time.sleep(0.06 * (event.outcome == "invalid"))


def on_its_thread() -> object:
    """An observer whose hook works on the thread that made it alone."""
    made = threading.get_ident()
    return having(request_finished=raising(lambda event: threading.get_ident() != made))()


def own_hook() -> object:
    """An observer with a hook that is no method of its class."""
    observer = One()
    observer.server_ready = lambda event: None
    return observer


class CallableObject:
    def __call__(self, event: Any) -> None: ...


def only_by_name(self: object, *, event: Any) -> None: ...


def any_number(self: object, *event: Any) -> None: ...


def only_by_position(self: object, event: Any, /) -> None: ...


class Inheriting(ObserverHooks):
    def request_finished(self, event: Any) -> None: ...


FAULTS = [
    ("hooks", type("Empty", (), {}), "it has no hook"),
    ("hooks", having(request_finish=One.request_finished), "did you mean request_finished"),
    ("hooks", having(helper=One.request_finished), "helper is a public method but no hook"),
    ("hooks", having(server_ready=lambda self: None), r"server_ready\(\) must be server_ready\(ev"),
    ("hooks", having(server_ready=lambda self, e: None), r"server_ready\(e\) must be"),
    ("hooks", having(server_ready=lambda self, event, more=1: None), "must be"),
    ("hooks", having(server_ready=lazy), "server_ready is async"),
    ("hooks", having(close=lambda self, event: None), r"must be close\(\)"),
    (
        "hooks",
        having(server_ready=only_by_name),
        r"server_ready\(\*, event.*must be server_ready\(",
    ),
    ("hooks", having(server_ready=any_number), r"server_ready\(\*event.*must be server_ready\("),
    ("hooks", having(server_ready=only_by_position), r"event.*, /\).*must be server_ready\("),
    ("hooks", having(server_ready=property(lambda self: print)), "is no method but a property"),
    ("hooks", having(server_ready=CallableObject()), "is no method but a CallableObject"),
    ("hooks", having(server_ready=None), "server_ready is no method but a NoneType"),
    ("hooks", having(close="later"), "close is no method but a str; write it with def"),
    ("hooks", having(close=property(lambda self: print)), "close is no method but a property"),
    ("hooks", own_hook, "server_ready is no method of its class"),
    ("hooks", Inheriting, "server_ready is inherited from ObserverHooks"),
    ("start", having(__init__=lambda self: time.sleep(0.06)), "making it takes"),
    ("events", having(request_finished=slow_at_invalid), "takes [6-9].* ms.*outcome='invalid'"),
    ("events", having(request_finished=change), "request_finished changes its event"),
    ("events", having(request_finished=leave), r"request_finished raises SystemExit\(3\)"),
    ("events", on_its_thread, "not made for this"),
    ("events", having(close=leave), r"close raises SystemExit\(3\)"),
    ("token_ids", having(tokens_generated=raising(lambda e: e.token_ids)), "not made for this"),
    ("unused", having(close=need_an_event), "close raises AttributeError"),
    ("end", having(__init__=start_a_thread), "still there after it is closed: forgotten"),
    *[
        ("events", having(request_finished=raising(lambda e, o=o: e.outcome == o)), f"'{o}'")
        for o in OUTCOMES
    ],
    ("events", having(request_finished=raising(lambda e: e.error and "%" in e.error)), "not made"),
    ("events", having(request_received=raising(lambda e: not e.request_id)), "not made for this"),
    ("events", having(sequence_started=raising(lambda e: e.index == 2)), "not made for this"),
    ("events", having(tokens_generated=raising(lambda e: e.token_ids is None)), "not made for"),
    ("events", having(server_ready=raising(lambda e: not e.kernels)), "not made for this"),
]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that need no long waits."""
    monkeypatch.setattr("tokenspeed_sdk.testing.observer.suite.START_SECONDS", 0.05)
    monkeypatch.setattr("tokenspeed_sdk.testing.observer.suite.END_SECONDS", 0.1)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("observer", [Sound, One])
def test_a_sound_observer_passes(check: str, observer: type) -> None:
    CHECKS[check](observer)


@pytest.mark.parametrize(("check", "factory", "says"), FAULTS)
def test_a_fault_is_found(check: str, factory: Callable[[], object], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        CHECKS[check](factory)


def test_every_check_has_a_fault() -> None:
    assert {check for check, _, _ in FAULTS} == set(CHECKS)


@pytest.mark.parametrize("token_ids", [False, True])
def test_events_are_those_of_a_server(token_ids: bool) -> None:
    """As the contract promises: order, sums, pages; every hook, and every outcome."""
    events = make_events(token_ids=token_ids)
    assert {event.hook for event in events} == set(EVENTS)
    assert [event.hook for event in events].index("server_ready") == 0
    assert sum(event.hook == "server_ready" for event in events) == 1
    requests: dict[int, list[Any]] = {}
    for event in events:
        if hasattr(event, "request"):
            requests.setdefault(event.request, []).append(event)
        if event.hook == "load_reported":
            pages = event.free_pages + event.cached_pages + event.active_pages
            assert pages == READY.total_pages
    for told in requests.values():
        check_request(told, token_ids)
    ends = [told[-1] for told in requests.values()]
    assert {end.outcome for end in ends} == set(OUTCOMES)
    assert {told[0].sequences for told in requests.values()} == {1, 2, 3}


def check_request(events: list[Any], token_ids: bool) -> None:
    """All that is told of one request."""
    received, *middle, finished = events
    assert (received.hook, finished.hook) == ("request_received", "request_finished")
    assert (finished.error is None) == (OUTCOMES.index(finished.outcome) < 4)
    started = [event for event in middle if event.hook == "sequence_started"]
    tokens = [event for event in middle if event.hook == "tokens_generated"]
    assert [event.index for event in started] == list(range(len(started)))
    assert len(started) in (0, received.sequences)
    assert len(started) + len(tokens) == len(middle)
    assert finished.cached_tokens == sum(event.cached_tokens for event in started)
    assert finished.started_prompt_tokens == sum(event.prompt_tokens for event in started)
    assert finished.output_tokens == sum(event.count for event in tokens)
    assert finished.outcome not in ("stop", "length") or tokens
    for _, group in groupby(sorted(tokens, key=lambda e: e.index), key=lambda e: e.index):
        first, *more = group
        assert first.seconds_since_previous is None
        assert all(event.seconds_since_previous is not None for event in more)
    for event in tokens:
        assert (len(event.token_ids) == event.count) if token_ids else event.token_ids is None


@pytest.mark.parametrize("token_ids", [False, True])
def test_events_have_the_types_that_the_contract_says(token_ids: bool) -> None:
    plain = {"float": float, "int": int, "str": str}
    for event in make_events(token_ids=token_ids):
        for each in fields(event):
            if each.type in plain:
                assert type(getattr(event, each.name)) is plain[str(each.type)], (event, each.name)


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from tokenspeed_sdk.testing import observer_conformance;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


VENDOR = """
from tokenspeed_sdk.testing import observer_conformance

class Journal:
    def request_finished(self, event):
        pass

class Wrong:
    def request_finishd(self, event):
        pass

test_journal = observer_conformance(Journal)
test_wrong = observer_conformance(Wrong)
"""


def test_one_line_makes_one_test_per_check(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_vendor=VENDOR)
    run = pytester.runpytest_inprocess("-q", "-rf")
    assert run.parseoutcomes() | {"warnings": 0} == {
        "passed": 2 * len(CHECKS) - 1,
        "failed": 1,
        "warnings": 0,
    }
    run.stdout.fnmatch_lines(["*request_finishd is a public method but no hook; did you mean *"])
