# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A child proves that it sees what its parent resolved, and takes its parent's choices."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest
from tokenspeed.plugins.choose.lists import gather
from tokenspeed.plugins.errors import DeclinedError, PlanMismatchError
from tokenspeed.plugins.host import prove, resolve_installed

pytestmark = pytest.mark.rule("R8")

CHILD = """
import sys, msgspec
from tokenspeed.plugins.host import prove
from tokenspeed.plugins.plan import PluginPlan
prove(msgspec.json.decode(sys.stdin.buffer.read(), type=PluginPlan))
"""


def in_a_child(plan, *folders, **variables):
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-P", "-c", CHILD],
        input=msgspec.json.encode(plan),
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        check=False,
    )


def resolve_in_a_process(*folders, **choices):
    """What a parent with these folders on its path resolves, on top of what is installed."""
    program = (
        "import sys, msgspec; from tokenspeed.plugins.host import resolve_installed;"
        "from tokenspeed.plugins.choose.lists import gather;"
        f"plan = resolve_installed({choices['platform']!r}, lists=gather(deny={choices['deny']!r}))"
        ".plan; sys.stdout.buffer.write(msgspec.json.encode(plan))"
    )
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environment, capture_output=True, check=True
    )
    from tokenspeed.plugins.plan import PluginPlan

    return msgspec.json.decode(done.stdout, type=PluginPlan)


def test_a_child_whose_path_has_one_plugin_fewer_refuses(sites):
    sites[0].platform("acme-gpu", "acme", devices=("cpu",))
    sites[1].provide("extra-kernels", "kernel", "extra", claims=("rms_norm@1:extra",))
    first, second = (site.folder for site in sites)
    plan = resolve_in_a_process(first, second, platform="acme", deny=[])
    assert in_a_child(plan, first, second).returncode == 0
    done = in_a_child(plan, first)
    assert done.returncode == 1
    assert b"kernel extra of extra-kernels 1.0: only there" in done.stderr


def test_a_child_takes_its_parent_s_lists_and_not_its_own(sites):
    sites[0].platform("acme-gpu", "acme")
    sites[0].provide("extra-kernels", "kernel", "extra", claims=("rms_norm@1:extra",))
    plan = resolve_in_a_process(sites[0].folder, platform="acme", deny=["kernel=extra"])
    assert "extra" not in {p.name for p in plan.provisions}
    assert in_a_child(plan, sites[0].folder, TOKENSPEED_ALLOW="none").returncode == 0


def test_a_child_asks_only_its_parent_s_platform(site):
    """So a slow or broken platform costs its time once, and not in every process."""
    site.platform("acme-gpu", "acme")
    site.platform("rude-gpu", "rude", prefix="raise SystemExit('asked')\n")
    plan = resolve_installed().plan
    (site.folder / "rude_gpu" / "__init__.py").write_text("raise AssertionError('asked')")
    prove(plan)
    assert "rude_gpu" not in sys.modules


def test_a_child_without_the_device_refuses(site):
    site.platform("acme-gpu", "acme")
    plan = resolve_installed().plan
    for name in [name for name in sys.modules if name.startswith("acme_gpu")]:
        del sys.modules[name]
    init = site.folder / "acme_gpu" / "__init__.py"
    init.write_text(init.read_text().replace("Accept(10, 'is there')", "Decline('gone, really')"))
    with pytest.raises(DeclinedError, match="gone, really"):
        prove(plan)


@pytest.mark.rule("R14")
def test_kernels_for_other_devices_are_left_out_and_never_imported(site):
    site.platform("acme-gpu", "acme", devices=("cuda",))
    boom = "raise SystemExit('imported')"
    site.provide("any", "kernel", "any", claims=("rms_norm@1:any",), code="make = tuple")
    site.provide(
        "cuda-k", "kernel", "cu", claims=("rms_norm@1:cu",), devices=("cuda", "xpu"), code=boom
    )
    site.provide("cpu-k", "kernel", "c", claims=("rms_norm@1:c",), devices=("cpu",), code=boom)
    resolution = resolve_installed()
    assert [p.name for p in resolution.plan.of("kernel")] == ["any", "cu"]
    (row,) = resolution.others
    assert (row.role, row.chosen, row.owner) == ("kernel c", "left out", "cpu-k 1.0")
    assert row.why == "for cpu; platform acme has cuda"
    assert "cpu_k" not in sys.modules


def test_the_devices_are_part_of_the_plan(site):
    site.platform("acme-gpu", "acme")
    before = resolve_installed().plan
    manifest = site.folder / "acme_gpu" / "tokenspeed_plugin.toml"
    manifest.write_text(manifest.read_text().replace("devices = []", 'devices = ["cuda"]'))
    after = resolve_installed().plan
    assert before.hash != after.hash
    with pytest.raises(PlanMismatchError):
        prove(before)


@pytest.mark.rule("R14")
def test_the_engine_derives_what_plugins_need(site):
    site.platform("acme-gpu", "acme")
    site.provide("watcher", "observer", "watch", more='needs = ["token_ids"]\n')
    assert resolve_installed().plan.needs("observer") == {"token_ids"}
    lists = gather(deny=["observer=watch"])
    assert resolve_installed(lists=lists).plan.needs("observer") == frozenset()
