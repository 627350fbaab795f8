# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A broken plugin ends a launch only if the launch stands on it; otherwise it is in plain sight."""

from __future__ import annotations

import pytest
from tokenspeed.plugins.choose.lists import gather
from tokenspeed.plugins.errors import (
    ContractError,
    LoadError,
    ManifestError,
    PluginError,
    WheelAbsentError,
)
from tokenspeed.plugins.host import resolve_installed
from tokenspeed_sdk.contracts.manifest import CONTRACTS

pytestmark = pytest.mark.rule("R6")

GROUPS = {
    "platform": {"tokenspeed.platform": {"broken": "bad:make"}},
    "model": {"tokenspeed.model": {"broken": "bad"}},
    "kernel": {"tokenspeed.kernel": {"broken": "bad:make"}},
    "observer": {"tokenspeed.observer": {"broken": "bad:make"}},
}
BOOM = "raise SystemExit('a refused plugin was imported')"


def unreadable(site, contract, distribution="bad"):
    """A plugin whose manifest cannot be read; its entry points say what it offers."""
    groups = {"tokenspeed.plugins": {"bad": "bad:tokenspeed_plugin.toml"}, **GROUPS[contract]}
    site.add(distribution, "manifest = ", groups, BOOM)


def newer(site, contract, name="broken", claims=()):
    """A plugin for a contract number that this engine does not serve."""
    site.provide("newer", contract, name, number="9.9", claims=claims, code=BOOM)


@pytest.mark.parametrize("contract", ["kernel", "model", "observer"])
def test_a_plugin_that_is_not_used_is_a_warning_and_a_row(site, contract):
    site.platform("acme-gpu", "acme")
    unreadable(site, contract)
    resolution = resolve_installed()
    assert resolution.plan.platform == "acme"
    assert [p.distribution for p in resolution.plan.provisions] == ["acme-gpu"]
    (warning,) = resolution.warnings
    assert "Invalid value" in warning
    assert "pip uninstall bad" in warning
    (row,) = resolution.others
    assert (row.role, row.chosen, row.owner) == ("plugin bad", "refused", "bad 1.0")
    assert "is not valid" in row.why


def test_a_mismatched_plugin_that_is_not_used_says_both_numbers(site):
    site.platform("acme-gpu", "acme")
    newer(site, "observer")
    (row,) = resolve_installed().others
    assert f"contract number 9.9; this engine serves {CONTRACTS['observer']}" in row.why


@pytest.mark.parametrize("break_it", [unreadable, newer])
def test_the_embedded_platform_does_not_stand_in_for_one_that_is_refused(site, break_it):
    site.platform("small", "cpu", embedded=True)
    break_it(site, "platform")
    with pytest.raises(PluginError) as caught:
        resolve_installed()
    assert isinstance(caught.value, ManifestError | ContractError)
    assert "no other platform accepts this machine, and broken may be the one" in str(caught.value)
    assert "--platform cpu" in caught.value.fix
    assert "--deny platform=broken" in caught.value.fix


@pytest.mark.parametrize(
    "choices",
    [
        {"platform": "cpu"},
        {"lists": gather(deny=["platform=broken"])},
        {"lists": gather(deny=["platform=newer"])},
        {"lists": gather(["platform=cpu"])},
    ],
)
def test_who_names_another_or_denies_it_goes_on(site, choices):
    site.platform("small", "cpu", embedded=True)
    newer(site, "platform")
    resolution = resolve_installed(**choices)
    assert resolution.plan.platform == "cpu"
    assert bool(resolution.warnings) == ("platform" in choices)


def test_a_refused_platform_beside_one_that_accepts_is_a_warning(site):
    site.platform("acme-gpu", "acme")
    newer(site, "platform")
    resolution = resolve_installed()
    assert resolution.plan.platform == "acme"
    assert "9.9" in resolution.warnings[0]


def test_a_refused_platform_that_is_alone_is_not_called_absent(site):
    newer(site, "platform")
    with pytest.raises(ContractError):
        resolve_installed()


@pytest.mark.parametrize("break_it", [unreadable, newer])
def test_the_platform_that_was_named_is_fatal(site, break_it):
    site.platform("acme-gpu", "acme")
    break_it(site, "platform")
    with pytest.raises(PluginError, match=r"Invalid value|9\.9"):
        resolve_installed("broken")


def test_a_plugin_that_is_allowed_by_name_is_fatal(site):
    site.platform("acme-gpu", "acme")
    newer(site, "kernel")
    with pytest.raises(ContractError, match="it is asked for: --allow kernel=broken"):
        resolve_installed(lists=gather(["kernel=broken"]))


def test_the_holder_of_a_pinned_kernel_is_fatal(site):
    site.platform("acme-gpu", "acme")
    newer(site, "kernel", claims=("rms_norm@1:fast",))
    with pytest.raises(ContractError, match="it holds the pinned kernel rms_norm@1=fast"):
        resolve_installed(pins={"rms_norm@1": "fast"})
    assert resolve_installed(pins={"rms_norm@1": "reference"}).warnings


def test_who_may_hold_a_pinned_kernel_is_fatal(site):
    site.platform("acme-gpu", "acme")
    unreadable(site, "kernel")
    with pytest.raises(ManifestError, match="it may hold the pinned kernel"):
        resolve_installed(pins={"rms_norm@1": "fast"})


def test_the_holder_of_the_architecture_is_fatal(site):
    site.platform("acme-gpu", "acme")
    newer(site, "model", claims=("LlamaForCausalLM",))
    with pytest.raises(ContractError, match="it holds architecture LlamaForCausalLM"):
        resolve_installed(architectures=["LlamaForCausalLM"])
    with pytest.raises(WheelAbsentError):
        resolve_installed(architectures=["OtherForCausalLM"])


def test_who_may_hold_the_architecture_is_fatal_unless_another_does(site):
    site.platform("acme-gpu", "acme")
    unreadable(site, "model")
    with pytest.raises(ManifestError, match="it may hold architecture LlamaForCausalLM"):
        resolve_installed(architectures=["LlamaForCausalLM"])
    site.provide("family", "model", "llama", claims=("LlamaForCausalLM",))
    resolution = resolve_installed(architectures=["LlamaForCausalLM"])
    assert resolution.model is not None
    assert (resolution.model.chosen, resolution.model.owner) == ("llama", "family 1.0")
    assert resolution.warnings


def test_another_plugin_of_the_platform_s_wheel_is_fatal(site):
    platform = '[[provides]]\ncontract = "platform"\nnumber = "1.0"\nname = "acme"\n'
    groups = {
        "tokenspeed.plugins": {
            "acme": "acme_gpu:tokenspeed_plugin.toml",
            "extra": "acme_gpu:absent.toml",
        },
        "tokenspeed.platform": {"acme": "acme_gpu:make"},
        "tokenspeed.kernel": {"extra": "acme_gpu:extra"},
    }
    code = "from tokenspeed_sdk.contracts import Accept\nclass make:\n    name = 'acme'\n"
    code += "    embedded = False\n    def probe(self):\n        return Accept(1, 'is there')\n"
    code += "    prepare = open = probe\n"
    site.add("acme-gpu", f'manifest = "1.0"\nid = "acme"\n{platform}', groups, code)
    with pytest.raises(ManifestError, match="it is part of the wheel of platform acme"):
        resolve_installed()


def test_an_import_error_is_not_called_absence(site):
    """The library that its import misses is another one than what one would install."""
    cause = "raise ImportError('libcudart.so.12: cannot open shared object file')\n"
    site.platform("acme-gpu", "acme", prefix=cause)
    with pytest.raises(LoadError) as caught:
        resolve_installed()
    assert "libcudart.so.12" in str(caught.value)
    assert "pip install acme" not in str(caught.value)
    assert "not installed" not in str(caught.value)
    assert "native library does not load" in caught.value.fix


def test_an_undefined_symbol_is_shown_behind_what_hides_it(site):
    hidden = (
        "try:\n    raise ImportError('acme/_C.so: undefined symbol: _ZN3c104impl')\n"
        "except ImportError as error:\n"
        "    raise RuntimeError('Failed to load the backend extension') from error\n"
    )
    site.platform("acme-gpu", "acme", prefix=hidden)
    with pytest.raises(LoadError, match="undefined symbol: _ZN3c104impl") as caught:
        resolve_installed()
    assert "native library" in caught.value.fix


def test_sys_exit_in_a_plugin_does_not_end_the_host(site):
    site.platform("acme-gpu", "acme")
    site.platform("rude-gpu", "rude", prefix="raise SystemExit(0)\n")
    resolution = resolve_installed()
    assert resolution.plan.platform == "acme"
    assert "SystemExit" in resolution.warnings[0]


@pytest.mark.rule("R5")
def test_every_platform_installed_accepts_is_not_silent_about_the_others(site):
    site.platform("acme-gpu", "acme", verdict="Accept(9, 'two devices')")
    site.platform("other-gpu", "other", verdict="Decline('driver 470 is too old')")
    (other,) = resolve_installed().platform.runners_up
    assert other.why == "declined: driver 470 is too old"
