# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Our own wheels are plugins like any other: taken away, they are missed by name."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distribution

import pytest
import torch
from packaging.requirements import Requirement
from safetensors.torch import save_file
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


def test_explain_shows_what_a_drafter_calls_and_what_verifies(ts_without, model, tmp_path):
    config = json.loads((model / "config.json").read_text())
    head = tmp_path / "head"
    head.mkdir()
    own = {"num_hidden_layers": 1, "eagle_aux_hidden_state_layer_ids": [0, 1]}
    (head / "config.json").write_text(json.dumps(config | own))
    save_file({"fc.weight": torch.zeros(1)}, head / "model.safetensors")
    options = ("--drafter", "eagle3", "--drafter-model", str(head), "--json")
    done = ts_without(None)("kernels", "explain", str(model), *options)
    assert done.returncode == 0, done.stderr
    sites = {(site["role"], site["op"]) for site in json.loads(done.stdout)}
    assert {("drafter", "linear@1"), ("drafter", "kv_write@1")} <= sites
    assert {("main", "linear@1"), ("main", "adjust_logits_verify@1")} <= sites


def test_no_transformers_in_what_serves():
    """Importing all that engine and front run from leaves it out."""
    program = (
        "import sys\n"
        "import tokenspeed.engine.start, tokenspeed.front.server, tokenspeed_models.llama\n"
        "assert 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0
