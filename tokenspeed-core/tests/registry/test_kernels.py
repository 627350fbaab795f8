# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which kernel is chosen, and that every reason is kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tokenspeed.plugins.choose.lists import gather
from tokenspeed.plugins.choose.usable import Refused
from tokenspeed.plugins.discover.discovery import InstalledPlugin
from tokenspeed.plugins.errors import (
    BrokenPromiseError,
    ContractError,
    LoadError,
    NotWiredError,
    UnknownNameError,
    describe,
)
from tokenspeed.plugins.load.plugin_code import EscapeError
from tokenspeed.plugins.plan import Planned
from tokenspeed.registry.candidates import NoKernelError
from tokenspeed.registry.kernels import KernelRegistry
from tokenspeed_sdk.contracts import Accept, Decline
from tokenspeed_sdk.contracts.kernel import CallSite
from tokenspeed_sdk.contracts.observer import KernelChoice
from tokenspeed_sdk.contracts.platform import Capabilities

DEVICE = Capabilities("cpu", "x86-64-v3", ("float32",), frozenset(), 4)
SITE = CallSite("rms_norm@1", "model.norm", "float32", DEVICE, {"hidden": 8})


@pytest.mark.rule("R13")
def test_the_highest_score_wins_and_the_others_keep_their_reasons(plugins, kernel):
    plugins.kernels("acme", kernel("slow", 1), kernel("fast", 9), kernel("gpu", "needs a GPU"))
    registry = KernelRegistry(plugins.plan(), {})
    binding = registry.bind(SITE)
    assert binding.kernel == "fast"
    assert binding.call() == "fast"
    assert binding.pack_weight("w") == ("fast", "model.norm", "w")
    decision = registry.bound[0].decision
    assert (decision.chosen, decision.owner) == ("fast", "acme 1.0")
    assert decision.why == "score 9: scores 9"
    assert {r.name: r.why for r in decision.runners_up} == {
        "slow": "outranked; score 1: scores 1",
        "gpu": "declined: needs a GPU",
        "reference": "outranked; score 0: the op's definition in plain torch; slow, chosen last",
    }


def test_the_reference_serves_when_nobody_else_does_and_computes(plugins, kernel):
    import torch

    plugins.kernels("acme", kernel("gpu", "needs a GPU"))
    binding = KernelRegistry(plugins.plan(), {}).bind(SITE)
    assert binding.kernel == "reference"
    x = torch.arange(16.0).reshape(2, 8)
    expected = torch.nn.functional.rms_norm(x, (8,), eps=1e-5)
    torch.testing.assert_close(binding.call(x, torch.ones(8), 1e-5), expected)
    weight = torch.ones(8)
    assert binding.pack_weight(weight) is weight


def test_the_reference_is_last_even_against_a_negative_score(plugins, kernel):
    plugins.kernels("acme", kernel("slow", -5))
    assert KernelRegistry(plugins.plan(), {}).bind(SITE).kernel == "slow"


@pytest.mark.parametrize("names", [("ant", "bee"), ("bee", "ant")])
def test_ties_go_by_name_and_not_by_order(plugins, kernel, names):
    plugins.kernels("x" + names[0], kernel(names[0], 5))
    plugins.kernels("y" + names[1], kernel(names[1], 5))
    assert KernelRegistry(plugins.plan(), {}).bind(SITE).kernel == "ant"


@pytest.mark.rule("R13")
def test_a_pin_is_honoured(plugins, kernel):
    plugins.kernels("acme", kernel("slow", 1), kernel("fast", 9))
    registry = KernelRegistry(plugins.plan(), {"rms_norm@1": "slow"})
    assert registry.bind(SITE).kernel == "slow"
    registry.check_pins()
    decision = registry.bound[0].decision
    assert decision.why == "pinned; scores 1"
    assert decision.runners_up[0].why == "slow is pinned; score 9: scores 9"


@pytest.mark.rule("R13")
@pytest.mark.parametrize("role", ["main", "encoder", "drafter"])
def test_a_pin_counts_in_every_part_of_the_engine(plugins, kernel, role):
    plugins.kernels("acme", kernel("slow", 1), kernel("fast", 9))
    registry = KernelRegistry(plugins.plan(), {"rms_norm@1": "slow"})
    assert registry.bind(replace(SITE, role=role)).kernel == "slow"


@pytest.mark.rule("R13")
def test_a_pin_that_does_not_fit_is_refused_and_not_replaced(plugins, kernel):
    plugins.kernels("acme", kernel("gpu", "needs a GPU"), kernel("fast", 9))
    registry = KernelRegistry(plugins.plan(), {"rms_norm@1": "gpu"})
    with pytest.raises(NoKernelError) as caught:
        registry.bind(SITE)
    text = str(caught.value)
    assert 'the pinned kernel "gpu" does not serve rms_norm@1 at model.norm' in text
    assert "gpu of acme 1.0: declined: needs a GPU" in text
    assert registry.bound == []


@pytest.mark.rule("R13")
def test_a_pin_that_met_no_call_site_is_refused(plugins):
    registry = KernelRegistry(plugins.plan(), {"rope@1": "reference"})
    registry.bind(SITE)
    with pytest.raises(UnknownNameError, match='never calls op "rope@1"'):
        registry.check_pins()


def test_an_op_of_nobody_is_a_lookup_error(plugins):
    site = CallSite("acme::op@1", "model.x", "float32", DEVICE)
    with pytest.raises(LookupError, match="no plugin and no public op has this name"):
        KernelRegistry(plugins.plan(), {}).bind(site)


def test_an_op_of_a_plugin_s_own(plugins, kernel):
    plugins.kernels("acme", kernel("fast", 1, op="acme::op@1"))
    site = CallSite("acme::op@1", "model.x", "float32", DEVICE)
    assert KernelRegistry(plugins.plan(), {}).bind(site).kernel == "fast"


@pytest.mark.rule("R9")
@pytest.mark.parametrize("claims", [["rms_norm@1:fast", "rope@1:fast"], []])
def test_kernels_that_differ_from_the_manifest_are_refused(plugins, kernel, claims):
    plugins.kernels("acme-cpu", kernel("fast", 1), claims=claims)
    with pytest.raises(BrokenPromiseError, match="offers other kernels than it claims"):
        KernelRegistry(plugins.plan(), {})


@pytest.mark.rule("R6")
@pytest.mark.rule("R9")
def test_a_half_registered_plugin_leaves_nothing_behind(plugins, kernel, caplog):
    """It claims two kernels and returns one: neither is taken, and both are in sight."""
    plugins.kernels("half", kernel("fast", 9), claims=["rms_norm@1:fast", "rope@1:fast"])
    registry = KernelRegistry(plugins.plan(), {})
    assert registry.bind(SITE).kernel == "reference"
    reason = (
        "half 1.0 offers other kernels than it claims: its manifest claims rms_norm@1:fast, "
        "rope@1:fast; make() returns rms_norm@1:fast"
    )
    assert registry.bound[0].decision.runners_up[0].why == f"failed: {reason}"
    (row,) = registry.refused
    assert (row.role, row.chosen, row.owner) == ("kernel half", "refused", "half 1.0")
    assert row.why == reason
    assert reason in caplog.text
    assert registry.wired() == []


@pytest.mark.rule("R9")
def test_a_plugin_is_taken_whole_or_not_at_all(plugins, kernel):
    """One of its two providers is broken: the sound one is rolled back with it."""
    plugins.kernels("acme", kernel("fast", 9))
    plugins.add("kernel", "other", "acme", ["rope@1:fast"], make=broken_provider)
    registry = KernelRegistry(plugins.plan(), {})
    assert registry.bind(SITE).kernel == "reference"
    assert len(registry.refused) == 2


@pytest.mark.rule("R6")
def test_a_half_registered_plugin_that_is_pinned_is_fatal(plugins, kernel):
    plugins.kernels("half", kernel("fast", 9), claims=["rms_norm@1:fast", "rope@1:fast"])
    with pytest.raises(BrokenPromiseError):
        KernelRegistry(plugins.plan(), {"rms_norm@1": "fast"})


@pytest.mark.rule("R6")
def test_a_broken_plugin_that_is_allowed_by_name_is_fatal(plugins):
    plugins.add("kernel", "k", "other", ["rms_norm@1:fast"], make=broken_provider)
    with pytest.raises(LoadError):
        KernelRegistry(plugins.plan(gather(["kernel=k"])), {})


def broken_provider():
    raise OSError("libacme.so.12: cannot open shared object file")


@pytest.mark.rule("R6")
def test_a_broken_plugin_of_the_chosen_platform_is_fatal(plugins):
    plugins.add("kernel", "k", "acme-cpu", ["rms_norm@1:fast"], make=broken_provider)
    with pytest.raises(LoadError, match=r"libacme\.so\.12"):
        KernelRegistry(plugins.plan(), {})


@pytest.mark.rule("R6")
def test_a_broken_plugin_that_is_pinned_is_fatal(plugins):
    plugins.add("kernel", "k", "other", ["rms_norm@1:fast"], make=broken_provider)
    with pytest.raises(LoadError):
        KernelRegistry(plugins.plan(), {"rms_norm@1": "fast"})


@pytest.mark.rule("R6")
def test_another_broken_plugin_is_a_warning_and_a_line_in_the_table(plugins, caplog):
    plugins.add("kernel", "k", "other", ["rms_norm@1:fast"], make=broken_provider)
    registry = KernelRegistry(plugins.plan(), {})
    assert "libacme.so.12" in caplog.text
    assert registry.bind(SITE).kernel == "reference"
    (runner_up,) = registry.bound[0].decision.runners_up
    assert runner_up.owner == "other 1.0"
    assert runner_up.why.startswith("failed: ")


@pytest.mark.rule("R6")
def test_a_kernel_that_raises_when_asked_is_left_out_visibly(plugins, kernel, caplog):
    plugins.kernels("other", kernel("odd", ZeroDivisionError("by zero")))
    registry = KernelRegistry(plugins.plan(), {})
    assert registry.bind(SITE).kernel == "reference"
    registry.bind(SITE)
    assert caplog.text.count("kernel odd of other 1.0 is left out") == 1
    assert "kernel odd of other 1.0 for rms_norm@1 at model.norm" in caplog.text
    assert registry.bound[0].decision.runners_up[0].why == "failed: ZeroDivisionError: by zero"


def test_a_kernel_of_the_platform_that_raises_when_asked_is_fatal(plugins, kernel):
    plugins.kernels("acme-cpu", kernel("odd", ZeroDivisionError("by zero")))
    with pytest.raises(ZeroDivisionError):
        KernelRegistry(plugins.plan(), {}).bind(SITE)


@pytest.mark.rule("R13")
def test_a_plugin_that_was_never_loaded_is_a_runner_up_for_what_it_claims(plugins, kernel):
    """Refused by its manifest, so it is in no plan."""
    planned = Planned("kernel", "new", "new:make", "newer", "1.0", "9.9", ("rms_norm@1:new",))
    error = ContractError("newer 1.0 is too new", where="manifest", fix="upgrade")
    plugin = InstalledPlugin("newer", "newer", "1.0", provisions=(planned,), error=error)
    plugins.kernels("acme", kernel("fast", 9))
    registry = KernelRegistry(plugins.plan(), {}, [Refused(plugin, error, plugin.offers)])
    assert registry.bind(SITE).kernel == "fast"
    why = {other.name: other.why for other in registry.bound[0].decision.runners_up}
    assert why["new"] == "refused: newer 1.0 is too new"


@pytest.mark.rule("R6")
def test_a_kernel_of_the_platform_that_cannot_be_bound_says_whose_it_is(plugins, kernel):
    odd = kernel("odd", 5)
    odd.bind = lambda site: 1 / 0
    plugins.kernels("acme-cpu", odd)
    with pytest.raises(ZeroDivisionError) as caught:
        KernelRegistry(plugins.plan(), {}).bind(SITE)
    last = "kernel odd of acme-cpu 1.0 for rms_norm@1 at model.norm"
    assert describe(caught.value).endswith(last)


@pytest.mark.rule("R13")
def test_a_kernel_that_cannot_be_bound_gives_way_to_the_next(plugins, kernel):
    """As when its compiler fails: another one serves, and the reason is kept."""
    odd = kernel("odd", 9)
    odd.bind = lambda site: 1 / 0
    plugins.kernels("acme", odd, kernel("slow", 1))
    registry = KernelRegistry(plugins.plan(), {})
    assert registry.bind(SITE).kernel == "slow"
    why = {other.name: other.why for other in registry.bound[0].decision.runners_up}
    assert why["odd"] == "failed: ZeroDivisionError: division by zero"


@pytest.mark.rule("R13")
def test_a_pinned_kernel_that_cannot_be_bound_is_fatal(plugins, kernel):
    odd = kernel("odd", 9)
    odd.bind = lambda site: 1 / 0
    plugins.kernels("acme", odd, kernel("slow", 1))
    with pytest.raises(ZeroDivisionError):
        KernelRegistry(plugins.plan(), {"rms_norm@1": "odd"}).bind(SITE)


def test_explain_counts_equal_call_sites(plugins):
    registry = KernelRegistry(plugins.plan(), {})
    for layer in ("a", "b", "c"):
        registry.bind(CallSite("rms_norm@1", layer, "float32", DEVICE, {"hidden": 8}))
    registry.bind(CallSite("rms_norm@1", "d", "float32", DEVICE, {"hidden": 16}))
    registry.bind(CallSite("silu_and_mul@1", "e", "float32", DEVICE, {"inter": 16}))
    counts = [(bound.site.layer, count) for bound, count in registry.explain()]
    assert counts == [("a", 3), ("d", 1), ("e", 1)]
    assert len(registry.explain("rms_norm@1")) == 2


@pytest.mark.parametrize("verdict", [None, (9, "fits"), Accept("9", "text")])
def test_a_verdict_that_is_none_names_the_plugin(plugins, kernel, verdict):
    plugins.kernels("acme-cpu", kernel("fast", verdict))
    with pytest.raises(
        BrokenPromiseError, match=r"acme-cpu 1\.0 has a kernel whose accept returned"
    ):
        KernelRegistry(plugins.plan(), {}).bind(SITE)


def test_a_bound_kernel_that_cannot_be_called_names_the_plugin(plugins, kernel):
    fast = kernel("fast", 9)
    fast.bind = lambda site: None
    plugins.kernels("acme-cpu", fast)
    with pytest.raises(
        BrokenPromiseError, match=r"acme-cpu 1\.0 has a kernel whose bind returned None"
    ):
        KernelRegistry(plugins.plan(), {}).bind(SITE)


@pytest.mark.parametrize("returned", ["one kernel", None, ("fast",), (object(),)])
def test_a_provider_that_returns_no_tuple_of_kernels_names_the_plugin(plugins, kernel, returned):
    provided = kernel("fast", 9) if returned == "one kernel" else returned
    plugins.add("kernel", "k", "acme-cpu", ["rms_norm@1:fast"], make=lambda: provided)
    with pytest.raises(BrokenPromiseError, match=r"acme-cpu 1\.0 (must return a tuple|returned)"):
        KernelRegistry(plugins.plan(), {})


@pytest.mark.rule("R14")
def test_wired_counts_ops_and_sites(plugins, kernel):
    plugins.kernels("acme", kernel("fast", 9), kernel("fast", 1, op="rope@1"))
    registry = KernelRegistry(plugins.plan(), {})
    registry.bind(SITE)
    registry.bind(SITE)
    (wired,) = registry.wired()
    assert (wired.places, wired.what) == (2, "candidate for 2 ops, chosen at 2 sites")
    registry.check_wired()


@pytest.mark.rule("R14")
def test_a_plugin_without_kernels_ends_the_start(plugins):
    plugins.kernels("empty")
    registry = KernelRegistry(plugins.plan(), {})
    with pytest.raises(NotWiredError, match=r"kernel empty of empty 1\.0") as caught:
        registry.check_wired()
    assert "--deny kernel=empty" in caught.value.fix


@pytest.mark.rule("R13")
def test_choices_are_what_explain_says(plugins, kernel):
    plugins.kernels("acme", kernel("fast", 9))
    registry = KernelRegistry(plugins.plan(), {})
    for layer in ("a", "b"):
        registry.bind(CallSite("rms_norm@1", layer, "float32", DEVICE, {"hidden": 8}))
    registry.bind(CallSite("silu_and_mul@1", "c", "float32", DEVICE, {"inter": 16}))
    assert registry.choices() == [
        KernelChoice("rms_norm@1", "fast", "acme 1.0", "float32", "main", 2),
        KernelChoice("silu_and_mul@1", "reference", "tokenspeed-sdk", "float32", "main", 1),
    ]
    table = [(row.role, row.chosen, row.sites) for row in registry.table()]
    assert table == [("rms_norm@1", "fast", 2), ("silu_and_mul@1", "reference", 1)]


@pytest.mark.rule("R6")
@pytest.mark.parametrize("method", ["accept", "bind"])
@pytest.mark.parametrize("raised", [SystemExit(0), asyncio.CancelledError()])
def test_a_kernel_that_would_end_the_process_is_left_out_or_fatal(plugins, kernel, method, raised):
    def end(site):
        raise raised

    odd = kernel("odd", 5)
    setattr(odd, method, end)
    plugins.kernels("acme", odd)
    registry = KernelRegistry(plugins.plan(), {})
    assert registry.bind(SITE).kernel == "reference"
    (why,) = (other.why for other in registry.bound[0].decision.runners_up)
    assert why.startswith(f"failed: EscapeError: {type(raised).__name__}")
    with pytest.raises(EscapeError) as caught:
        KernelRegistry(plugins.plan(), {"rms_norm@1": "odd"}).bind(SITE)
    assert "kernel odd of acme 1.0 for rms_norm@1 at model.norm" in describe(caught.value)


@pytest.mark.rule("R6")
def test_a_kernel_cannot_change_the_site_that_the_others_see(plugins, kernel):
    evil = kernel("evil", 9)
    evil.accept = lambda site: site.traits.clear()
    good = kernel("good", 5)
    seen = []
    good.bind = lambda site: seen.append(dict(site.traits)) or print
    plugins.kernels("acme", evil, good)
    registry = KernelRegistry(plugins.plan(), {})
    assert registry.bind(SITE).kernel == "good"
    assert seen == [{"hidden": 8}]
    assert registry.bound[0].site.traits == {"hidden": 8}


@pytest.mark.rule("R6")
@pytest.mark.parametrize(
    "verdict",
    [Accept(True, "x"), Accept(10**5000, "x"), Accept(2**31, "x"), Accept(float("nan"), "x"),
     Accept(9, None), Decline(None)],
    ids=["bool", "huge", "large", "nan", "no text", "no reason"],
)  # fmt: skip
def test_a_verdict_of_another_form_leaves_the_kernel_out(plugins, kernel, verdict):
    plugins.kernels("acme", kernel("odd", verdict))
    registry = KernelRegistry(plugins.plan(), {})
    assert registry.bind(SITE).kernel == "reference"
    (why,) = (other.why for other in registry.bound[0].decision.runners_up)
    assert "whose accept returned" in why
    assert len(why) < 400


def test_control_characters_of_a_reason_are_escaped(plugins, kernel):
    plugins.kernels("acme", kernel("odd", Accept(9, "a\nb\x1b[31m\ud800")), kernel("no", "c\rd"))
    registry = KernelRegistry(plugins.plan(), {})
    registry.bind(SITE)
    decision = registry.bound[0].decision
    assert decision.why == r"score 9: a\nb\x1b[31m\ud800"
    assert r"declined: c\rd" in [other.why for other in decision.runners_up]
