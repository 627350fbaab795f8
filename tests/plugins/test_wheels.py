# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Our own wheels are plugins like any other: taken away, they are missed by name."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement
from tokenspeed.plugins.host import resolve_installed
from tokenspeed.registry.models import find_model
from tokenspeed_sdk.contracts import CONTRACTS

PIN = "rms_norm@1=reference"


def test_with_all_wheels_the_plan_is_complete(ts_without):
    run = ts_without(None)
    listed = run("plugins", "list")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert "tokenspeed-cpu" in listed.stdout
    assert "LlamaForCausalLM" in run("models", "list").stdout


OUR_PLUGINS = ("tokenspeed-cpu", "tokenspeed-models", "tokenspeed-llguidance")


@pytest.mark.rule("R20")
@pytest.mark.parametrize("wheel", OUR_PLUGINS)
def test_our_wheels_use_the_entry_points_that_strangers_use(wheel):
    groups = {entry.group for entry in distribution(wheel).entry_points}
    assert groups <= {"tokenspeed.plugins", *(f"tokenspeed.{contract}" for contract in CONTRACTS)}


@pytest.mark.rule("R3")
def test_plugins_require_the_sdk_alone_and_the_sdk_requires_nothing():
    def required(name):
        lines = [Requirement(line) for line in distribution(name).requires or ()]
        return {line.name for line in lines if line.marker is None}

    assert required("tokenspeed-sdk") == set()
    for wheel in OUR_PLUGINS:
        assert {name for name in required(wheel) if name.startswith("tokenspeed")} == {
            "tokenspeed-sdk"
        }


@pytest.mark.rule("R20")
@pytest.mark.parametrize("wheel", ["tokenspeed-cpu", "tokenspeed-models"])
def test_serve_without_one_of_our_wheels_names_it(ts_without, model, wheel):
    done = ts_without(wheel)("serve", str(model))
    assert done.returncode == 1
    assert f"pip install {wheel}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_cpu_serves_where_nothing_else_is_installed():
    resolution = resolve_installed()
    assert resolution.plan.platform == "cpu"
    assert resolution.platform.owner.startswith("tokenspeed-cpu ")
    _, planned = find_model(resolution.plan, ["LlamaForCausalLM"])
    assert planned.distribution == "tokenspeed-models"


@pytest.mark.rule("R13")
def test_explain_shows_every_candidate_at_every_call_site(ts_without, model):
    done = ts_without(None)("kernels", "explain", "--model", str(model), "--pin", PIN)
    assert done.returncode == 0, done.stderr
    sites = {text.split()[0]: text for text in done.stdout.replace("\n ", "\0").splitlines()}
    assert {"linear@1", "rope@1", "attention_decode@1", "sample@1"} <= set(sites)
    for op, text in sites.items():
        chosen, other = text.split("\0")[1], text.split("\0")[-1]
        if PIN.startswith(op):
            assert "* reference (tokenspeed-sdk): pinned" in chosen
            assert "cpu (tokenspeed-cpu" in other
        else:
            assert "* cpu (tokenspeed-cpu" in chosen
            assert "reference (tokenspeed-sdk): outranked" in other


def test_no_transformers_in_what_serves():
    """Importing all that engine and front run from leaves it out."""
    program = (
        "import sys\n"
        "import tokenspeed.engine.start, tokenspeed.front.server, tokenspeed_models.llama\n"
        "assert 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0
