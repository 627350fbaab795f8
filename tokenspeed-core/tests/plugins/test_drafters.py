# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Drafters of plugins: found, shown in the plan, and held to their contract when loaded."""

from __future__ import annotations

import itertools

import pytest
from tokenspeed.config import EngineConfig
from tokenspeed.plugins.choose.drafters import find_drafter, with_drafter
from tokenspeed.plugins.discover.discovery import discover
from tokenspeed.plugins.doctor.try_load import try_load
from tokenspeed.plugins.errors import (
    BrokenPromiseError,
    DrafterModelError,
    LoadError,
    UnknownNameError,
)
from tokenspeed.plugins.host import resolve_installed
from tokenspeed.plugins.plan import Planned
from tokenspeed.process.launch import resolve_engine
from tokenspeed.registry.drafters import read_drafter

_numbers = itertools.count()

SOUND = """
class Backend:
    name = "echo"

    def open(self, limits):
        return self
"""


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """A drafter "echo" whose module has this code."""

    def make(code: str) -> Planned:
        module = f"echo_{next(_numbers)}"
        (tmp_path / f"{module}.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        return Planned(
            contract="drafter",
            name="echo",
            value=f"{module}:Backend",
            distribution="acme-echo",
            version="1.2",
            number="1.0",
            claims=("echo",),
            plugin="echo",
        )

    return make


def test_a_sound_one_is_read(planned):
    assert read_drafter(planned(SOUND)).name == "echo"
    assert try_load(planned(SOUND)) == "drafter echo"


OF_A_MODEL = """
class Backend:
    name = "echo"

    def read_config(self, config, target): ...
    def taps(self, config): ...
    def cache_groups(self, config): ...
    def build(self, config, context, target, tensors): ...
"""


def test_a_sound_one_with_a_model_is_read(planned):
    assert read_drafter(planned(OF_A_MODEL)).name == "echo"


@pytest.mark.parametrize("method", ["read_config", "taps", "cache_groups"])
def test_one_with_a_model_has_all_its_methods(planned, method):
    with pytest.raises(BrokenPromiseError, match=f"has no method {method}"):
        read_drafter(planned(OF_A_MODEL.replace(f"def {method}", "def other")))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "echo"', 'name = "other"', "calls itself 'other'"),
        ('name = "echo"', "", "calls itself None"),
        ("def open", "def start", "has no method open"),
    ],
)
def test_a_broken_promise_names_the_wheel(planned, old, new, message):
    assert old in SOUND
    with pytest.raises(BrokenPromiseError, match=message) as caught:
        read_drafter(planned(SOUND.replace(old, new)))
    assert "acme-echo" in str(caught.value)


def test_an_installed_one_is_found(site):
    site.provide("acme-echo", "drafter", "echo", claims=("echo",), number="1.0")
    (plugin,) = discover()
    assert plugin.error is None
    assert plugin.offers == (("drafter", "echo"),)
    site.platform("acme-gpu", "acme")
    resolution = resolve_installed()
    assert [planned.name for planned in resolution.plan.of("drafter")] == ["echo"]
    assert "drafter" not in [row.role for row in with_drafter(resolution, None).table]
    for name, owner in (("echo", "acme-echo 1.0"), ("suffix", "tokenspeed-core")):
        (row,) = [row for row in with_drafter(resolution, name).table if row.role == "drafter"]
        assert (row.chosen, row.owner.startswith(owner)) == (name, True)
    with pytest.raises(UnknownNameError, match='no drafter "eco" is installed') as caught:
        with_drafter(resolution, "eco")
    assert caught.value.fix == "give one of echo, suffix, or leave it out"


MAKE_MODEL = OF_A_MODEL.replace("class Backend", "class make")


@pytest.mark.parametrize(
    ("settings", "what", "fix"),
    [
        ({"drafter": "echo"}, "drafter echo guesses with a model", "with --drafter-model"),
        ({"drafter": "suffix", "drafter_model": "."}, "drafter suffix has no model", "leave it"),
        (
            {"drafter": "echo", "drafter_model": "/nowhere"},
            "/nowhere/config.json is missing",
            "give the folder",
        ),
    ],
)
def test_a_model_that_is_missing_or_too_many_is_said_before_a_start(site, settings, what, fix):
    site.provide("acme-echo", "drafter", "echo", claims=("echo",), code=MAKE_MODEL)
    site.platform("acme-gpu", "acme")
    with pytest.raises(DrafterModelError, match=what) as caught:
        resolve_engine(EngineConfig(model="", **settings))
    assert fix in caught.value.fix


def test_one_with_its_model_is_first_imported_by_the_engine(site, tmp_path):
    """What it imports may be large."""
    site.provide("acme-echo", "drafter", "echo", claims=("echo",), code="1 / 0")
    site.platform("acme-gpu", "acme")
    (tmp_path / "config.json").write_text("{}")
    resolve_engine(EngineConfig(model="", drafter="echo", drafter_model=str(tmp_path)))
    with pytest.raises(LoadError, match="division by zero"):
        resolve_engine(EngineConfig(model="", drafter="echo"))


def test_one_that_is_named_as_the_engines_own_is_shown_as_what_it_is(site):
    site.provide("acme-echo", "drafter", "suffix", claims=("suffix",), number="1.0")
    site.platform("acme-gpu", "acme")
    resolution = resolve_installed()
    (row,) = [r for r in with_drafter(resolution, "suffix").table if r.role == "drafter"]
    assert row.owner == "acme-echo 1.0"
    (installed,) = resolution.plan.of("drafter")
    assert find_drafter("suffix", [installed]) is installed, "as the engine finds it"
    assert find_drafter("suffix", []) is None


@pytest.mark.parametrize("number", ["0.1", "1.1", "2.0"])
def test_another_number_is_refused_before_import(site, number):
    site.provide("acme-echo", "drafter", "echo", claims=("echo",), code="1 / 0", number=number)
    (plugin,) = discover()
    assert f"contract number {number}; this engine serves 1.0" in str(plugin.error)
