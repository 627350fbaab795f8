# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The pytest plugin: installed plugins are out of sight; platforms without hardware."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distributions
from typing import Any

import pytest
from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_sdk.testing import CPU, H100, MI350, NO_DEVICE, FakePlatform, chosen, verdicts

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.rule("R19")

CONFTEST = 'pytest_plugins = ["tokenspeed_sdk.testing.plugin"]'
RESOLVE = """
import subprocess, sys
import pytest

CODE = "from tokenspeed.plugins.host import resolve_installed as r; print(r().plan.platform)"

def resolved():
    command = [sys.executable, "-c", CODE]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)

def test_blocked():
    run = resolved()
    assert run.returncode != 0
    assert "not allowed: --allow platform=none" in run.stderr

@pytest.mark.installed_plugins
def test_open():
    run = resolved()
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
"""


def run(pytester: pytest.Pytester, **modules: str) -> Any:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(**modules)
    return pytester.runpytest_subprocess("--strict-markers")


def test_a_test_and_its_fixtures_see_no_plugin_unless_marked(pytester: pytest.Pytester) -> None:
    module = """
import os, pytest

@pytest.fixture(scope="{scope}")
def seen():
    return os.environ.get("TOKENSPEED_ALLOW")

def test_blocked(seen):
    assert seen == os.environ["TOKENSPEED_ALLOW"] == "none"
"""
    marked = """
import os, pytest
pytestmark = pytest.mark.installed_plugins

@pytest.fixture(scope="module")
def seen():
    return os.environ.get("TOKENSPEED_ALLOW")

def test_open(seen):
    assert seen is os.environ.get("TOKENSPEED_ALLOW") is None
"""
    one = """
import os, pytest

def test_blocked():
    assert os.environ["TOKENSPEED_ALLOW"] == "none"

@pytest.mark.installed_plugins
def test_open():
    assert "TOKENSPEED_ALLOW" not in os.environ
"""
    scopes = {f"test_{s}": module.format(scope=s) for s in ("function", "module", "session")}
    run(pytester, **scopes, test_marked=marked, test_one=one).assert_outcomes(passed=6)


@pytest.mark.skipif(
    not {"tokenspeed-core", "tokenspeed-cpu"} <= {d.name for d in distributions()},
    reason="tokenspeed-core and tokenspeed-cpu are not installed",
)
def test_the_engine_in_a_child_sees_none(pytester: pytest.Pytester) -> None:
    """The marked test proves that the other would have found a platform."""
    run(pytester, test_child=RESOLVE).assert_outcomes(passed=2)


def test_a_fixture_makes_fake_platforms(pytester: pytest.Pytester) -> None:
    tests = """
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_sdk.testing import H100

def test_fakes(fake_platform, missing_platform):
    assert isinstance(fake_platform("acme", H100).probe(), Accept)
    assert isinstance(missing_platform.probe(), Decline)
"""
    run(pytester, test_fakes=tests).assert_outcomes(passed=1)


@pytest.mark.parametrize("module", ["testing", "testing.plugin", "testing.platform.fakes"])
def test_the_light_part_does_not_import_torch(module: str) -> None:
    code = f"import sys, tokenspeed_sdk.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_exported_name_is_there() -> None:
    from tokenspeed_sdk import testing

    assert set(testing.__all__) == set(testing._MODULES)
    for name in testing.__all__:
        assert getattr(testing, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'kernel_conformanse'"):
        _ = testing.kernel_conformanse


class Picky:
    """Serves devices that capture graphs."""

    op = "rms_norm@1"

    def __init__(self, name: str, score: int) -> None:
        self.name = name
        self.score = score

    def accept(self, site: Any) -> Accept | Decline:
        if GRAPH_CAPTURE in site.device.features:
            return Accept(self.score, f"on {site.device.arch}")
        return Decline(f"{site.device.arch} captures no graphs")

    def bind(self, site: Any) -> Any:
        raise AssertionError("selection binds nothing")

    def pack_weight(self, site: Any, weight: Any) -> Any:
        raise AssertionError("selection packs nothing")


def test_verdicts_and_choice_without_hardware() -> None:
    kernels = [Picky("b", 10), Picky("low", 5), Picky("a", 10)]
    found = verdicts(kernels, "rms_norm@1", MI350, hidden=64)
    assert found["low"] == Accept(5, "on gfx950")
    assert chosen(found) == "a"
    with pytest.raises(LookupError, match="low: x86-64-v4 captures no graphs"):
        chosen(verdicts(kernels, "rms_norm@1", CPU, hidden=64))
    with pytest.raises(LookupError, match="there is none for this op"):
        chosen(verdicts(kernels, "linear@1", H100))


def test_a_fake_platform_opens_a_device_that_computes() -> None:
    device = FakePlatform("acme", H100).open()
    assert device.capabilities is H100
    held = device.allocate((2, 3), "float32")

    def add() -> None:
        held.add_(1)

    stream = device.stream()
    stream.run(add)
    event = stream.record()
    event.wait()
    assert event.done()
    assert held.sum() == 6
    device.capture(add, stream).replay()
    assert held.sum() == 18


def test_a_fake_device_reports_errors_where_its_events_are_waited_for() -> None:
    stream = FakePlatform("acme").open().stream()
    stream.run(lambda: (1 / 0) and None)
    event = stream.record()
    with pytest.raises(ZeroDivisionError):
        event.wait()
    stream.record().wait()
    stream.close()
    with pytest.raises(RuntimeError, match="closed"):
        stream.run(lambda: None)


def test_a_device_that_is_not_there_cannot_be_opened() -> None:
    with pytest.raises(RuntimeError, match="'acme' has no device: no such device in this machine"):
        FakePlatform("acme", verdict=NO_DEVICE).open()
    with pytest.raises(MemoryError, match="needed 4000000000000 bytes"):
        FakePlatform("acme").open().allocate((10**12,), "float32")
    device = FakePlatform("acme").open()
    stream = device.stream()
    with pytest.raises(RuntimeError, match="does not claim graph_capture"):
        device.capture(lambda: None, stream)
