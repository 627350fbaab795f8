# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The law of choice, on real discovery and probes of fake distributions."""

from __future__ import annotations

import itertools
import sys

import pytest
from tokenspeed.plugins.choose.resolve import Choices, resolve
from tokenspeed.plugins.errors import AmbiguousError, DeclinedError, LoadError
from tokenspeed.plugins.host import discover, probe, resolve_installed
from tokenspeed.plugins.load.activate import load, load_platform
from tokenspeed.plugins.plan import PluginPlan


@pytest.mark.rule("R5")
def test_discover_probe_resolve_activate(site):
    site.platform("acme-gpu", "acme")
    site.provide(
        "family",
        "model",
        "llama",
        claims=("LlamaForCausalLM",),
        attribute="",
        code="EntryClass = ()",
    )
    resolution = resolve_installed()
    assert resolution.plan.platform == "acme"
    assert resolution.platform.owner == "acme-gpu 1.0"
    assert resolution.warnings == ()
    assert [p.name for p in resolution.plan.of("model")] == ["llama"]
    assert "family" not in sys.modules  # models are loaded when one is asked for
    assert load_platform(resolution.plan).name == "acme"
    assert load(resolution.plan.of("model")[0]).EntryClass == ()


@pytest.mark.rule("R7")
def test_the_plan_does_not_depend_on_the_order_of_the_import_path(sites, monkeypatch):
    sites[0].platform("zebra", "z", verdict="Accept(1, 'slow')")
    sites[1].platform("ant", "a", verdict="Accept(2, 'fast')")
    there = resolve_installed()
    monkeypatch.setattr(sys, "path", [sys.path[1], sys.path[0], *sys.path[2:]])
    back = resolve_installed()
    assert there == back
    assert there.plan.platform == "a"


@pytest.mark.rule("R5")
def test_resolve_is_a_function_of_sets(site):
    site.platform("acme-gpu", "acme")
    site.platform("small", "cpu", embedded=True)
    site.platform("other-gpu", "other", verdict="Decline('no device')")
    plugins = discover()
    probes = probe(plugins, Choices())
    resolutions = [
        resolve(order, answers, Choices())
        for order in itertools.permutations(plugins)
        for answers in itertools.permutations(probes)
    ]
    assert len(resolutions) == 36
    assert all(resolution == resolutions[0] for resolution in resolutions)


@pytest.mark.rule("R8")
def test_the_version_is_part_of_the_plan(site):
    site.platform("acme-gpu", "acme")
    before = resolve_installed().plan
    info = site.folder / "acme_gpu-1.0.dist-info" / "METADATA"
    info.write_text(info.read_text().replace("1.0", "1.1"))
    after = resolve_installed().plan
    assert before.hash != after.hash
    assert before.differences(after) == [
        "platform acme of acme-gpu 1.0: only here",
        "platform acme of acme-gpu 1.1: only there",
    ]


@pytest.mark.rule("R8")
def test_a_plan_survives_the_wire(site):
    import msgspec

    site.platform("acme-gpu", "acme")
    plan = resolve_installed().plan
    assert msgspec.json.decode(msgspec.json.encode(plan), type=PluginPlan) == plan


def test_the_embedded_platform_serves_when_it_is_alone(site):
    site.platform("small", "cpu", embedded=True, verdict="Accept(1, 'always there')")
    resolution = resolve_installed()
    assert resolution.plan.platform == "cpu"
    assert resolution.platform.why == "no other platform is installed; always there"


def test_the_embedded_platform_gives_way_whatever_its_score(site):
    site.platform("small", "cpu", embedded=True, verdict="Accept(1000, 'always there')")
    site.platform("acme-gpu", "acme", verdict="Accept(1, 'one device')")
    resolution = resolve_installed()
    assert resolution.plan.platform == "acme"
    (runner_up,) = resolution.platform.runners_up
    assert (runner_up.name, runner_up.owner) == ("cpu", "small 1.0")
    assert "embedded default" in runner_up.why


@pytest.mark.rule("R5")
@pytest.mark.rule("R6")
def test_the_embedded_platform_does_not_stand_in_for_one_that_declines(site):
    site.platform("small", "cpu", embedded=True)
    site.platform("acme-gpu", "acme", verdict="Decline('no device on the bus')")
    with pytest.raises(DeclinedError, match=r"acme-gpu 1\.0\) says: no device on") as caught:
        resolve_installed()
    assert "--platform cpu" in caught.value.fix
    assert resolve_installed("cpu").plan.platform == "cpu"


@pytest.mark.rule("R6")
def test_the_embedded_platform_does_not_stand_in_for_one_that_fails(site):
    site.platform("small", "cpu", embedded=True)
    site.platform("acme-gpu", "acme", prefix="raise RuntimeError('driver too old')")
    with pytest.raises(LoadError, match="driver too old"):
        resolve_installed()


def test_a_probe_that_raises_is_a_failure_and_not_a_refusal(site):
    site.platform("acme-gpu", "acme", verdict="1 / 0")
    with pytest.raises(LoadError, match="ZeroDivisionError"):
        resolve_installed()


@pytest.mark.parametrize("verdict", ["None", "True", "'fine'"])
def test_an_answer_that_is_no_verdict_is_a_failure(site, verdict):
    site.platform("acme-gpu", "acme", verdict=verdict)
    with pytest.raises(LoadError, match=f"answers {verdict}"):
        resolve_installed()


@pytest.mark.rule("R6")
def test_another_platform_that_fails_is_a_visible_warning(site):
    site.platform("acme-gpu", "acme")
    site.platform("broken-gpu", "broken", prefix="import no_such_module")
    resolution = resolve_installed()
    assert resolution.plan.platform == "acme"
    (warning,) = resolution.warnings
    assert "broken-gpu 1.0" in warning
    assert "no_such_module" in warning
    assert resolution.platform.runners_up[0].why.startswith("failed: ")


@pytest.mark.rule("R13")
def test_a_named_platform_is_honoured_and_the_others_are_not_even_loaded(site):
    site.platform("acme-gpu", "acme", verdict="Accept(1, 'slow')")
    site.platform("broken-gpu", "broken", prefix="raise SystemExit")
    decision = resolve_installed("acme").platform
    assert decision.why == "named by the operator; slow"
    assert [(o.name, o.why) for o in decision.runners_up] == [
        ("broken", "not asked: acme is named")
    ]


@pytest.mark.rule("R5")
@pytest.mark.rule("R13")
def test_a_named_platform_that_declines_is_refused_with_its_reason(site):
    site.platform("acme-gpu", "acme", verdict="Decline('no device on the bus')")
    site.platform("other-gpu", "other")
    with pytest.raises(DeclinedError, match="no device on the bus"):
        resolve_installed("acme")


@pytest.mark.rule("R5")
def test_a_tie_asks_with_the_flags_to_use(site):
    site.platform("acme-gpu", "acme")
    site.platform("other-gpu", "other")
    with pytest.raises(AmbiguousError) as caught:
        resolve_installed()
    assert caught.value.fix == "say which: --platform acme or --platform other"
