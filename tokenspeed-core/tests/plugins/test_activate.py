# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A plugin is taken whole or not at all, and what is taken must be used."""

from __future__ import annotations

import time

import pytest
from tokenspeed.plugins.errors import BrokenPromiseError, LoadError, NotWiredError
from tokenspeed.plugins.host import resolve_installed
from tokenspeed.plugins.load.activate import activate, broken, call
from tokenspeed.plugins.load.wiring import Wired, check_wired
from tokenspeed.plugins.plan import Planned

PARTS = [
    Planned("kernel", name, "absent:make", "acme", "1.0", "1.0", plugin="acme")
    for name in ("one", "two")
]
OTHER = Planned("kernel", "three", "absent:make", "other", "2.0", "1.0", plugin="other")


def read(planned):
    if planned.name == "two":
        raise broken(planned, "is half a plugin")
    return planned.name.upper()


@pytest.mark.rule("R9")
def test_one_broken_part_takes_the_whole_plugin_with_it(caplog):
    found = activate([*PARTS, OTHER], read)
    assert [(a.planned.name, a.value) for a in found] == [
        ("one", None),
        ("two", None),
        ("three", "THREE"),
    ]
    assert all(isinstance(a.error, BrokenPromiseError) for a in found[:2])
    assert "acme 1.0 is half a plugin" in caplog.text


@pytest.mark.rule("R6")
@pytest.mark.parametrize("needed", ["one", "two"])
def test_what_the_launch_needs_is_fatal_with_all_of_its_plugin(needed):
    with pytest.raises(BrokenPromiseError, match="is half a plugin"):
        activate([*PARTS, OTHER], read, lambda planned: planned.name == needed)


@pytest.mark.rule("R6")
@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), SystemExit("bye")])
def test_whatever_a_plugin_raises_is_a_load_error_with_its_cause(error):
    def fall(planned):
        raise error

    (active,) = activate([OTHER], fall)
    assert isinstance(active.error, LoadError)
    assert active.error.__cause__ is error
    assert "other 2.0 failed to load" in active.error.what
    assert str(error) in active.error.what


def test_an_error_that_is_kept_keeps_no_frames():
    """A frame holds its callers, and they the engine that is being built."""
    (active,) = activate([OTHER], lambda planned: 1 / 0)
    assert active.error.__traceback__ is None
    assert active.error.__cause__.__traceback__ is None
    assert "ZeroDivisionError" in active.error.what


@pytest.mark.rule("R6")
def test_a_plugin_that_loads_for_long_is_named(monkeypatch, caplog):
    monkeypatch.setattr("tokenspeed.plugins.load.activate.PATIENCE", 0.05)
    activate([OTHER], lambda planned: time.sleep(0.2))
    assert "kernel three of other 2.0 is still loading after 0.05 s" in caplog.text
    caplog.clear()
    activate([OTHER], lambda planned: None)
    time.sleep(0.1)
    assert caplog.text == ""


@pytest.mark.rule("R1")
@pytest.mark.rule("R12")
def test_a_plugin_s_code_runs_when_it_is_activated_and_not_before(site):
    site.platform("acme-gpu", "acme")
    mark = site.folder / "ran"
    site.provide("watcher", "observer", "watch", code=f"open({str(mark)!r}, 'w')\nmake = dict\n")
    plan = resolve_installed().plan
    assert not mark.exists()
    (active,) = activate(plan.of("observer"), call)
    assert mark.exists()
    assert active.value == {}


@pytest.mark.rule("R14")
def test_what_nothing_uses_ends_the_start_and_is_named():
    check_wired([OTHER], [Wired(OTHER, 3, "3 hooks")])
    check_wired([], [])
    for wired in ([], [Wired(OTHER, 0, "no hooks")], [Wired(PARTS[0], 1, "1 hook")]):
        with pytest.raises(NotWiredError, match=r"kernel three of other 2\.0 was activated"):
            check_wired([OTHER], wired)
