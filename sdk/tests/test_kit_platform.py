# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The platform kit finds faults of platforms, and what the one line in a vendor's file makes."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_sdk.testing import FakePlatform
from tokenspeed_sdk.testing.platform.subject import Subject
from tokenspeed_sdk.testing.platform.suite import DEVICE_CHECKS, PLATFORM_CHECKS

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.rule("R19")


def opening(error: Exception) -> type[FakePlatform]:
    def fail(self: object, index: int) -> Device:
        raise error

    return type("Faulty", (FakePlatform,), {"open": fail})


@pytest.mark.parametrize(
    ("check", "platform", "says"),
    [
        ("missing_index", FakePlatform(), "opens a device"),
        ("missing_index", opening(IndexError("no device 4096"))(), "is no RuntimeError"),
        ("missing_index", opening(RuntimeError(" "))(), "has no text"),
        ("names", FakePlatform(""), "name is empty"),
        ("names", FakePlatform(b"acme"), "not a str"),
        ("names", FakePlatform(embedded=0), "not a bool"),
        ("verdict", FakePlatform(verdict=True), "no Verdict"),
        ("verdict", FakePlatform(verdict=Decline(" ")), "why is empty"),
        ("verdict", FakePlatform(verdict=Decline(OSError("gone"))), "not a str"),
        ("verdict", FakePlatform(verdict=Accept("high", "here")), "not an int"),
    ],
)
def test_a_fault_of_a_platform_is_found(check: str, platform: FakePlatform, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        {**PLATFORM_CHECKS, **DEVICE_CHECKS}[check](Subject(lambda: platform))


MODULE = """
{at_import}
from tokenspeed_sdk.testing import FakePlatform

class Acme(FakePlatform):
    def probe(self):
        {in_probe}
        return super().probe()
    def prepare(self, threads):
        {in_prepare}
"""


@pytest.mark.rule("R12")
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({}, None),
        ({"at_import": "import torch"}, "importing its module imports torch"),
        ({"in_probe": "import torch"}, r"probe\(\) imports torch"),
        ({"in_prepare": "import torch"}, r"prepare\(\) imports torch"),
        ({"in_probe": "import time; time.sleep(1)"}, "take 1.* s, more than 1 s"),
        ({"in_probe": "1 / 0"}, r"(?s)fails in a fresh process:.*ZeroDivisionError"),
    ],
)
def test_a_heavy_platform_is_found(
    fault: dict[str, str],
    says: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = {"at_import": "pass", "in_probe": "pass", "in_prepare": "pass"}
    (tmp_path / "acme_npu.py").write_text(MODULE.format(**empty | fault))
    (tmp_path / "torch.py").touch()  # what the fresh process imports, in no time
    monkeypatch.syspath_prepend(tmp_path)
    factory = type("Acme", (FakePlatform,), {"__module__": "acme_npu"})
    with pytest.raises(AssertionError, match=says) if says else nullcontext():
        PLATFORM_CHECKS["light"](Subject(factory))


def test_what_has_no_name_cannot_be_tried() -> None:
    with pytest.raises(AssertionError, match="pass what the entry point names"):
        PLATFORM_CHECKS["light"](Subject(partial(FakePlatform, "acme")))


VENDOR = """
from acme_npu import Missing
from tokenspeed_sdk.testing import FakePlatform, platform_conformance

test_fake = platform_conformance(FakePlatform)
test_missing = platform_conformance(Missing)
"""
MISSING = """
from tokenspeed_sdk.testing import NO_DEVICE, FakePlatform

class Missing(FakePlatform):
    def probe(self):
        return NO_DEVICE
"""


def test_one_line_makes_one_test_per_check(pytester: pytest.Pytester) -> None:
    """FakePlatform is no platform that could serve: it opens any device, and runs work at once."""
    pytester.makepyfile(acme_npu=MISSING, test_vendor=VENDOR)
    run = pytester.runpytest_inprocess("-q", "-rsf")
    counts = run.parseoutcomes()
    faults = ("missing_index", "at_once", "events", "two_streams")
    checks = len(PLATFORM_CHECKS) + len(DEVICE_CHECKS)
    assert counts["failed"] == len(faults)
    assert counts["passed"] == checks - len(faults) + len(PLATFORM_CHECKS)
    assert counts["skipped"] == len(DEVICE_CHECKS)
    run.stdout.fnmatch_lines_random([f"FAILED *test_fake?{check}? *" for check in faults])
    run.stdout.fnmatch_lines(["*platform fake declines: no such device in this machine"])


def test_the_environment_is_restored() -> None:
    """``prepare`` is called before the device is opened, and what it set is gone afterwards."""
    seen = []

    class Setting(FakePlatform):
        def prepare(self, threads: int | None) -> None:
            os.environ["ACME_THREADS"] = "3"

        def open(self, index: int = 0) -> Any:
            seen.append(os.environ["ACME_THREADS"])
            return super().open(index)

    assert Subject(Setting).device.torch_device == "cpu"
    assert seen == ["3"]
    assert "ACME_THREADS" not in os.environ
