# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A step that does not end is said in the log."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from harness import all_at_once, engine, submit
from tokenspeed.engine import watchdog
from tokenspeed.engine.watchdog import Activity, warn_of_hangs
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
