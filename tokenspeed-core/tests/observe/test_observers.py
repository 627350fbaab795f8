# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Loading observers, refusing broken ones by name, and keeping bad ones to themselves."""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenspeed.observe import delivery, observers
from tokenspeed.observe.observers import load_observers, read_observers
from tokenspeed.plugins.errors import BrokenPromiseError, LoadError, NotWiredError
from tokenspeed_sdk.contracts.manifest import TOKEN_IDS

from .conftest import event, eventually

RECORDER = """
    import os

    class Observer:
        def __init__(self):
            self._file = open(os.environ["LOG"], "a", buffering=1)
        def step_finished(self, event):
            print(f"step {event.decode_rows}", file=self._file)
        def tokens_generated(self, event):
            print(f"tokens {event.token_ids}", file=self._file)
        def close(self):
            print("closed", file=self._file)
            self._file.close()
"""
NO_ENDPOINT = "def Observer(): raise ValueError('no endpoint')"
RAISES = """
    class Observer:
        def step_finished(self, event):
            raise KeyError("no such row")
"""
SLEEPS = """
    import os, time

    class Observer:
        def step_finished(self, event):
            open(os.environ["LOG"] + ".begun", "w").close()
            time.sleep(60)
        def close(self):
            time.sleep(60)
"""


@pytest.mark.rule("R14")
def test_events_come_in_order_and_close_comes_last(plan_of: Any, log_file: Path) -> None:
    with load_observers(plan_of(good=RECORDER)) as loaded:
        assert loaded.table() == [{"observer": "good", "owner": "good-wheel 1.2", "hooks": 2}]
        for rows in range(100):
            loaded.observe(event("step_finished", decode_rows=rows))
            loaded.observe(event("load_reported"))  # it has no hook for this one
    lines = log_file.read_text().splitlines()
    assert lines == [*(f"step {rows}" for rows in range(100)), "closed"]


@pytest.mark.rule("R14")
def test_token_ids_only_for_who_needs_them(plan_of: Any, tmp_path: Path, monkeypatch: Any) -> None:
    without, reader = tmp_path / "without", tmp_path / "reader"
    sources = {
        "without": RECORDER.replace('os.environ["LOG"]', repr(str(without))),
        "reader": RECORDER.replace('os.environ["LOG"]', repr(str(reader))),
    }
    assert not load_observers(plan_of(without=sources["without"])).token_ids
    with load_observers(plan_of(needs={"reader": (TOKEN_IDS,)}, **sources)) as loaded:
        assert loaded.token_ids, "the engine derives it from the manifests"
        loaded.observe(event("tokens_generated", count=2, token_ids=(5, 6)))
    assert "tokens (5, 6)" in reader.read_text()
    assert "tokens None" in without.read_text()


@pytest.mark.rule("R14")
def test_an_observer_without_hooks_is_refused(plan_of: Any) -> None:
    with pytest.raises(NotWiredError) as error:
        load_observers(plan_of(idle="class Observer:\n    def close(self): pass"))
    assert "observer idle of idle-wheel 1.2 was activated, and nothing uses it" in str(error.value)
    assert "--deny observer=idle" in error.value.fix


@pytest.mark.rule("R14")
def test_inherited_specifications_are_no_hooks(plan_of: Any) -> None:
    source = """
        from tokenspeed_sdk.contracts.observer import ObserverHooks
        class Observer(ObserverHooks): pass
    """
    with pytest.raises(NotWiredError):
        load_observers(plan_of(lazy=source))


@pytest.mark.rule("R18")
@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("def request_finish(self, event): pass", 'did you mean "request_finished"?'),
        ("def helper(self, x): pass", '"helper", which is no hook'),
        ("def step_finished(self): pass", "step_finished(); it must be step_finished(event)"),
        ("def step_finished(self, step): pass", "step_finished(step); it must be"),
        ("def step_finished(self, event, more): pass", "it must be step_finished(event)"),
        ("def step_finished(self, event, more=1): pass", "it must be step_finished(event)"),
        ("async def step_finished(self, event): pass", "is async or a generator"),
        ("def step_finished(self, event): yield", "is async or a generator"),
        ("def step_finished(self, *, event): pass", "step_finished(*, event); it must be"),
        ("def step_finished(self, *event): pass", "step_finished(*event); it must be"),
        (
            "step_finished = property(lambda self: print)",
            "step_finished, a hook's name, that is no",
        ),
        (
            "step_finished = type('C', (), {'__call__': print})()",
            "a hook's name, that is no method",
        ),
        ("step_finished = None", "a hook's name, that is no method"),
        ("close = 'x'", "has a close that cannot be called: 'x'"),
        ("def close(self, event): pass", "has a close(event); it must be close()"),
        ("async def close(self): pass", "has a close that is async"),
    ],
)
def test_a_wrong_hook_is_named_with_its_owner(plan_of: Any, method: str, expected: str) -> None:
    with pytest.raises(BrokenPromiseError) as error:
        load_observers(plan_of(named=("wrong",), wrong=f"class Observer:\n    {method}"))
    assert expected in str(error.value)
    assert "wrong-wheel 1.2" in str(error.value)
    assert 'observer "wrong"' in error.value.where


def test_a_hook_that_is_no_method_is_refused(plan_of: Any) -> None:
    source = """
        class Observer:
            def __init__(self):
                self.step_finished = lambda event: None
    """
    with pytest.raises(BrokenPromiseError, match="no method of its class"):
        load_observers(plan_of(named=("odd",), odd=source))


def test_static_and_class_methods_are_hooks(plan_of: Any, log_file: Path) -> None:
    source = """
        import os
        class Observer:
            @staticmethod
            def step_finished(event): open(os.environ["LOG"], "a").write("static ")
            @classmethod
            def load_reported(cls, event): open(os.environ["LOG"], "a").write(cls.__name__)
    """
    with load_observers(plan_of(plain=source)) as loaded:
        loaded.observe(event("step_finished"))
        loaded.observe(event("load_reported"))
    assert log_file.read_text() == "static Observer"


@pytest.mark.rule("R6")
def test_a_factory_that_raises_keeps_its_cause(plan_of: Any) -> None:
    with pytest.raises(LoadError) as error:
        load_observers(plan_of(named=("bad",), bad=NO_ENDPOINT))
    assert "no endpoint" in str(error.value)
    assert "bad-wheel 1.2" in str(error.value)


@pytest.fixture
def _as_in_a_child() -> Iterator[None]:
    """The supervisor's children ignore the terminal's interrupt."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.rule("R6")
@pytest.mark.usefixtures("_as_in_a_child")
@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit", "GeneratorExit"])
@pytest.mark.parametrize("where", ["raise {}('gone')", "def Observer(): raise {}('gone')"])
def test_whatever_leaves_its_code_names_the_owner(plan_of: Any, raised: str, where: str) -> None:
    with pytest.raises(LoadError, match=f"cause: {raised}: gone") as caught:
        load_observers(plan_of(named=("bad",), bad=where.format(raised)))
    assert "bad-wheel 1.2" in caught.value.what
    assert type(caught.value.__cause__).__name__ == raised


def test_the_operator_s_interrupt_is_not_taken_for_a_failure(plan_of: Any) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        load_observers(plan_of(named=("bad",), bad="raise KeyboardInterrupt"))
    assert "observer bad of bad-wheel 1.2" in caught.value.__notes__[0]


@pytest.mark.rule("R6")
@pytest.mark.parametrize("source", ["raise OSError('gone')", "class Observer:\n  def x(self): 0"])
def test_a_broken_one_that_nobody_named_is_left_out_with_a_warning(
    plan_of: Any, log_file: Path, caplog: pytest.LogCaptureFixture, source: str
) -> None:
    with load_observers(plan_of(bad=source, good=RECORDER)) as loaded:
        assert [each.name for each in loaded] == ["good"]
        loaded.observe(event("step_finished"))
    assert log_file.read_text().splitlines() == ["step 0", "closed"]
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "bad-wheel 1.2" in warning.getMessage()
    assert ("gone" in warning.getMessage()) != ('"x"' in warning.getMessage())


@pytest.mark.rule("R6")
@pytest.mark.parametrize("named", [(), ("bad",)])
def test_one_that_does_not_load_in_time_is_left_out_or_if_named_fatal(
    plan_of: Any, caplog: pytest.LogCaptureFixture, monkeypatch: Any, named: tuple[str, ...]
) -> None:
    monkeypatch.setattr("tokenspeed.observe.observers.LOAD_SECONDS", 0.2)
    hanging = "import time\nclass Observer:\n  def __init__(self): time.sleep(2)"
    plan = plan_of(bad=hanging, named=named)
    told = 'observer "bad" .* of bad-wheel 1.2 did not load within 0.2 s'
    if named:
        with pytest.raises(LoadError, match=told) as caught:
            load_observers(plan)
        assert "--deny observer=bad" in caught.value.fix
        return
    with load_observers(plan) as loaded:
        assert list(loaded) == []
    assert re.search(told, caplog.text)


@pytest.mark.rule("R18")
def test_one_that_raises_is_reported_once_and_switched_off(
    plan_of: Any, log_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with load_observers(plan_of(bad=RAISES, good=RECORDER)) as loaded:
        bad, good = loaded
        for rows in range(50):
            loaded.observe(event("step_finished", decode_rows=rows))
        eventually(lambda: not bad.enabled)
    assert (bad.errors, bad.dropped) == (delivery.MAX_ERRORS, 0)
    assert (good.errors, good.dropped, good.enabled) == (0, 0, True)
    assert log_file.read_text().splitlines()[:-1] == [f"step {rows}" for rows in range(50)]
    first, last = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "bad of bad-wheel 1.2 raised in step_finished" in first.getMessage()
    assert "no such row" in str(first.exc_info)
    assert "switched off" in last.getMessage()


@pytest.mark.rule("R18")
def test_exit_in_a_hook_ends_nothing(plan_of: Any, caplog: pytest.LogCaptureFixture) -> None:
    source = "class Observer:\n    def step_finished(self, event): raise SystemExit(3)"
    with load_observers(plan_of(leaver=source)) as loaded:
        [leaver] = loaded
        for _ in range(3):
            loaded.observe(event("step_finished"))
    assert leaver.errors == 3


@pytest.mark.rule("R18")
def test_a_slow_one_loses_only_its_own(
    plan_of: Any, log_file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "QUEUE_EVENTS", 50)
    monkeypatch.setattr(observers, "CLOSE_SECONDS", 0.3)
    with load_observers(plan_of(slow=SLEEPS, good=RECORDER)) as loaded:
        good, slow = loaded
        for rows in range(40):
            loaded.observe(event("step_finished", decode_rows=rows))
        eventually(log_file.with_name("log.begun").exists)
        eventually(lambda: len(log_file.read_text().splitlines()) == 40)
        for rows in range(40, 80):
            loaded.observe(event("step_finished", decode_rows=rows))
        assert slow.dropped == 80 - 50 - 1, "one is in its hands, 50 wait"
        start = time.monotonic()
    assert time.monotonic() - start < 10, "it is left behind at the end"
    assert good.dropped == 0
    assert log_file.read_text().splitlines() == [*(f"step {rows}" for rows in range(80)), "closed"]
    text = caplog.text
    assert text.count("slow of slow-wheel 1.2 is too slow") == 1
    assert "slow of slow-wheel 1.2 did not close in time" in text


def test_every_observer_has_a_thread_of_its_own(plan_of: Any, log_file: Path) -> None:
    with load_observers(plan_of(one=RECORDER, two=RAISES)):
        names = {thread.name for thread in threading.enumerate()}
        assert {"observer one", "observer two"} <= names
    eventually(lambda: not {"observer one"} & {thread.name for thread in threading.enumerate()})


def test_what_a_hook_returns_is_discarded(plan_of: Any, log_file: Path) -> None:
    source = "class Observer:\n    def step_finished(self, event): return 'stop'"
    with load_observers(plan_of(chatty=source, good=RECORDER)) as loaded:
        assert loaded.observe(event("step_finished")) is None
    assert log_file.read_text().splitlines() == ["step 0", "closed"]


def test_reading_starts_nothing(plan_of: Any, log_file: Path) -> None:
    """For those who look without serving: the doctor."""
    plan = plan_of(good=RECORDER, bad=NO_ENDPOINT)
    bad, good = read_observers(plan.of("observer"))
    assert good.value is not None
    assert (sorted(good.value.hooks), good.error) == (["step_finished", "tokens_generated"], None)
    assert bad.value is None
    assert "no endpoint" in str(bad.error)
    assert "observer good" not in {thread.name for thread in threading.enumerate()}
