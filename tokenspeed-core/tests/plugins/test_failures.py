# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The five failures: each says what, where, and the one thing to do."""

from __future__ import annotations

import pytest
from tokenspeed.plugins.choose.resolve import Choices
from tokenspeed.plugins.discover.discovery import discover
from tokenspeed.plugins.errors import (
    ContractError,
    DuplicateClaimError,
    LoadError,
    UnknownNameError,
    WheelAbsentError,
)
from tokenspeed.plugins.host import probe, resolve_installed
from tokenspeed.plugins.load.activate import load
from tokenspeed.registry.models import find_model


@pytest.mark.rule("R6")
def test_1_import_error_keeps_and_prints_its_cause(site):
    site.platform("acme-gpu", "acme", prefix=(
        "try:\n    import libacme_missing\n"
        "except ImportError as error:\n    raise RuntimeError('acme cannot start') from error\n"
    ))  # fmt: skip
    with pytest.raises(LoadError) as caught:
        resolve_installed()
    text = str(caught.value)
    assert 'platform "acme" (acme_gpu:make) of acme-gpu 1.0 failed to load' in text
    assert "cause: RuntimeError: acme cannot start" in text
    assert "cause: ModuleNotFoundError: No module named 'libacme_missing'" in text
    assert "not installed" not in text
    assert f"where: {site.folder}/acme_gpu/__init__.py:2" in text
    assert "pip install --force-reinstall acme-gpu" in caught.value.fix
    (here,) = probe(discover(), Choices(), apart=False)
    assert here.outcome.what in text
    assert isinstance(here.outcome.__cause__, RuntimeError)


@pytest.mark.rule("R6")
def test_1_native_library_error_is_called_by_its_name(site):
    cause = "raise ImportError('libacme.so.12: cannot open shared object file')\n"
    site.platform("acme-gpu", "acme", prefix=cause)
    with pytest.raises(LoadError, match=r"libacme\.so\.12") as caught:
        resolve_installed()
    assert "native library" in caught.value.fix
    assert "not installed" not in str(caught.value)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.rule("R7")
def test_2_duplicate_claim_names_both_distributions(sites, order):
    sites[order].provide("first", "model", "one", claims=("LlamaForCausalLM",))
    sites[1 - order].provide("second", "model", "two", claims=("LlamaForCausalLM",))
    with pytest.raises(DuplicateClaimError) as caught:
        resolve_installed()
    text = str(caught.value)
    assert 'model claim "LlamaForCausalLM" is held twice: by first 1.0 and by second 1.0' in text
    fix = "remove one of them: pip uninstall first, or pip uninstall second"
    assert caught.value.fix == f"{fix}; or deny one by its plugin's id"


@pytest.mark.rule("R7")
def test_2_conflicts_are_refused_before_any_code_runs(site):
    site.platform("first", "acme", prefix="raise SystemExit('first ran')")
    site.platform("second", "acme", prefix="raise SystemExit('second ran')")
    with pytest.raises(DuplicateClaimError, match='platform name "acme"'):
        resolve_installed()


@pytest.mark.rule("R7")
def test_2_nobody_may_claim_the_reference(site):
    site.platform("acme-gpu", "acme")
    site.provide("first", "kernel", "fast", claims=("rms_norm@1:reference",))
    (row,) = resolve_installed().others
    assert row.chosen == "refused"
    assert 'claim "rms_norm@1:reference" is held by tokenspeed-sdk' in row.why


@pytest.mark.parametrize(("number", "stale"), [("0.0", "acme-gpu"), ("9.3", "tokenspeed-core")])
@pytest.mark.rule("R4")
def test_3_wrong_contract_says_both_numbers_and_the_pip_line(site, number, stale):
    site.provide("acme-gpu", "platform", "acme", number=number, code="raise SystemExit('ran')")
    with pytest.raises(ContractError) as caught:
        resolve_installed()
    assert f"contract number {number}; this engine serves 1.0" in str(caught.value)
    assert caught.value.where == str(site.folder / "acme_gpu" / "tokenspeed_plugin.toml")
    assert caught.value.fix == f"pip install --upgrade {stale}"


@pytest.mark.rule("R13")
def test_4_unknown_platform_gets_a_suggestion(site):
    site.platform("acme-gpu", "acme")
    with pytest.raises(UnknownNameError, match="--platform acne") as caught:
        resolve_installed("acne")
    assert caught.value.fix == 'did you mean "acme"?'


@pytest.mark.parametrize("named", ["cuda", "xpu", "zpu"])
def test_4_a_device_type_is_not_taken_for_a_misspelt_platform(site, named):
    site.platform("acme-gpu", "acme", devices=("xpu",))
    site.platform("small", "cpu", embedded=True)
    with pytest.raises(UnknownNameError) as caught:
        resolve_installed(named)
    assert (
        caught.value.fix
        == {
            "cuda": "pip install tokenspeed-nvidia",
            "xpu": "say --platform acme: it is for xpu",
            "zpu": "there is: acme, cpu",
        }[named]
    )


@pytest.mark.parametrize(
    ("pin", "message", "fix"),
    [
        ({"rmsnorm@1": "fast"}, 'op "rmsnorm@1"', 'did you mean "rms_norm@1"?'),
        ({"rms_norm@1": "fats"}, 'no kernel "fats"', 'did you mean "fast"?'),
        ({"foo@1": "fast"}, 'op "foo@1"', "see what there is: ts kernels explain FOLDER"),
    ],
)
@pytest.mark.rule("R13")
def test_4_unknown_pin_gets_a_suggestion(site, pin, message, fix):
    site.platform("acme-gpu", "acme")
    site.provide("acme-kernels", "kernel", "fast", claims=("rms_norm@1:fast",))
    with pytest.raises(UnknownNameError, match=message) as caught:
        resolve_installed(pins=pin)
    assert caught.value.fix == fix


@pytest.mark.rule("R6")
def test_5_no_platform_names_the_wheel(site):
    with pytest.raises(WheelAbsentError) as caught:
        resolve_installed()
    assert caught.value.fix == "pip install tokenspeed-cpu"
    with pytest.raises(UnknownNameError) as named:
        resolve_installed("cpu")
    assert named.value.fix == "pip install tokenspeed-cpu"


def test_5_no_model_names_architecture_and_wheel(site):
    site.platform("acme-gpu", "acme")
    with pytest.raises(WheelAbsentError, match="architecture LlamaForCausalLM") as caught:
        find_model(resolve_installed().plan, ["LlamaForCausalLM"])
    assert caught.value.fix == "pip install tokenspeed-models"


def test_5_an_architecture_that_nobody_sells_shows_what_there_is(site):
    site.platform("acme-gpu", "acme")
    site.provide("family", "model", "f", claims=("QwenForCausalLM",))
    with pytest.raises(WheelAbsentError) as caught:
        find_model(resolve_installed().plan, ["QwemForCausalLM"])
    assert "ts models list" in caught.value.fix


def test_an_error_while_loading_one_object_names_its_owner(site):
    site.platform("acme-gpu", "acme")
    site.provide("family", "model", "f", attribute=":absent")
    with pytest.raises(LoadError, match=r'model "f" \(family:absent\) of family 1.0') as caught:
        load(resolve_installed().plan.of("model")[0])
    assert caught.value.where == "entry point family:absent"  # no line of its code raised


def test_a_syntax_error_says_where_it_is(site):
    site.platform("acme-gpu", "acme")
    site.provide("family", "model", "f", code="import family.deep\n")
    deep = site.folder / "family" / "deep.py"
    deep.write_text("\n\ndef = 3\n")
    with pytest.raises(LoadError) as caught:
        load(resolve_installed().plan.of("model")[0])
    assert caught.value.where == f"{deep}:3"
    assert caught.value.what.endswith("cause: SyntaxError: invalid syntax")


def test_the_line_of_the_plugin_is_named_and_not_the_library_s_that_it_called(site):
    site.platform("acme-gpu", "acme")
    site.provide("family", "model", "f", code="import json\n\njson.loads('{')\n")
    with pytest.raises(LoadError, match="JSONDecodeError") as caught:
        load(resolve_installed().plan.of("model")[0])
    assert caught.value.where == f"{site.folder}/family/__init__.py:3"


@pytest.mark.rule("R7")
def test_2_kernels_for_other_devices_conflict_with_nobody_here(site):
    site.platform("acme-gpu", "acme", devices=("cuda",))
    site.platform("other-npu", "other", devices=("npu",), verdict="Decline('no')")
    for name in ("one", "two"):
        site.provide(name, "kernel", name, claims=("rms_norm@1:same",), devices=("npu",))
    resolution = resolve_installed()
    (warning,) = resolution.warnings
    assert 'kernel claim "rms_norm@1:same" is held twice: by one 1.0 and by two 1.0' in warning
    (row,) = [row for row in resolution.others if row.role == "conflict"]
    assert (row.chosen, row.owner) == ("left out", "one 1.0 and two 1.0")
    for name in ("three", "four"):
        site.provide(name, "kernel", name, claims=("rms_norm@1:mine",), devices=("cuda",))
    with pytest.raises(DuplicateClaimError, match="rms_norm@1:mine"):
        resolve_installed()
