# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What is found, from metadata and manifests alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tokenspeed.plugins.discover.discovery import discover
from tokenspeed.plugins.errors import ManifestError

VALID = """
manifest = "1.0"
id = "acme"
[[provides]]
contract = "model"
number = "1.0"
name = "acme"
claims = ["AcmeForCausalLM"]
"""
ENTRY_POINTS = {
    "tokenspeed.plugins": {"acme": "acme:tokenspeed_plugin.toml"},
    "tokenspeed.model": {"acme": "acme.model"},
}


@pytest.mark.rule("R2")
@pytest.mark.rule("R12")
def test_a_plugin_is_read_with_its_owner_and_not_imported(site):
    site.add("acme", VALID, ENTRY_POINTS, code="raise RuntimeError('imported')", version="2.5")
    (plugin,) = discover()
    assert plugin.error is None
    assert (plugin.id, plugin.owner) == ("acme", "acme 2.5")
    (provision,) = plugin.provisions
    assert provision.value == "acme.model"
    assert provision.claims == ("AcmeForCausalLM",)
    assert provision.owner == "acme 2.5"
    assert "acme" not in sys.modules


@pytest.mark.rule("R1")
def test_distributions_without_our_entry_points_are_not_plugins(site):
    site.add("other", None, {"console_scripts": {"other": "other:main"}})
    assert discover() == ()


@pytest.mark.rule("R2")
def test_the_manifest_is_found_in_any_search_location(sites, monkeypatch):
    """As in an editable install whose compiled part lies elsewhere."""
    first, second = sites
    (first.folder / "acme").mkdir()  # a namespace package in two places: manifest in the second
    second.add("acme", VALID, ENTRY_POINTS)
    (second.folder / "acme" / "__init__.py").unlink()
    (plugin,) = discover()
    assert plugin.error is None
    assert plugin.manifest == str(second.folder / "acme" / "tokenspeed_plugin.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('id = "acme"', 'id = "other"', 'calls itself "other"'),
        ('id = "acme"', "", "id must be a string"),
        ('id = "acme"', "id = ", "Invalid value"),
        ('contract = "model"', 'contract = "modle"', 'no contract "modle"; did you mean "model"?'),
        ('number = "1.0"', 'number = "1"', "MAJOR.MINOR"),
        ('manifest = "1.0"', "", "manifest must be a string"),
        ('contract = "model"', 'contract = "kv_store"', 'contract "kv_store" is reserved'),
        ('name = "acme"', 'name = "acme"\nneeds = ["gpu"]', 'model plugins cannot need "gpu"'),
        ('name = "acme"', 'name = "acme"\ndevices = "cuda"', "devices must be a list of strings"),
        ("claims =", "claim =", 'unknown key "claim"; did you mean "claims"?'),
        ('["AcmeForCausalLM"]', "[1]", "claims must be a list of strings"),
        ('["AcmeForCausalLM"]', '["A", "A"]', 'model claim "A" stands there 2 times'),
        ('name = "acme"', 'name = "acmee"', 'model "acmee" has no entry point'),
    ],
)
@pytest.mark.rule("R2")
def test_a_wrong_manifest_is_a_value_that_names_file_and_field(site, old, new, message):
    assert old in VALID
    site.add("acme", VALID.replace(old, new), ENTRY_POINTS)
    (plugin,) = discover()
    assert isinstance(plugin.error, ManifestError)
    assert message in str(plugin.error)
    assert plugin.error.where == str(site.folder / "acme" / "tokenspeed_plugin.toml")
    assert "pip uninstall acme" in plugin.error.fix


@pytest.mark.rule("R7")
def test_a_distribution_that_is_found_twice_is_one_plugin(sites):
    """As with two folders of one installation: Python imports the first."""
    for site, version in zip(sites, ("1.0", "2.0"), strict=True):
        site.add("acme", VALID, ENTRY_POINTS, version=version)
    (plugin,) = discover()
    assert plugin.owner == "acme 1.0"


@pytest.mark.rule("R6")
@pytest.mark.rule("R11")
@pytest.mark.parametrize(
    ("metadata", "entry_points", "message"),
    [
        (None, "[tokenspeed.plugins]\na = a:x\n", "metadata: "),
        ("Name: broken\n", "[tokenspeed.plugins]\na = a:x\n", "Version not present"),
        ("Name: broken\nVersion: 1\n", "[tokenspeed.plugins]\na\n", "entry points: "),
        (
            "Name: broken\nVersion: 1\n",
            "[tokenspeed.plugin]\na = a:x\n",
            'unknown entry point group "tokenspeed.plugin"; did you mean "tokenspeed.plugins"?',
        ),
        (
            "Name: broken\nVersion: 1\n",
            "[tokenspeed.kv_store]\na = a:x\n",
            'group "tokenspeed.kv_store" is reserved',
        ),
    ],
)
def test_broken_metadata_keeps_no_other_plugin_from_view(site, metadata, entry_points, message):
    info = site.folder / "broken-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(entry_points)
    if metadata is not None:
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{metadata}")
    site.add("sound", VALID.replace("acme", "sound"), {
        "tokenspeed.plugins": {"sound": "sound:tokenspeed_plugin.toml"},
        "tokenspeed.model": {"sound": "sound.model"},
    })  # fmt: skip
    broken, sound = discover()
    assert sound.error is None
    assert broken.distribution == "broken"
    assert message in str(broken.error)


def test_broken_entry_points_of_others_are_no_business_of_ours(site):
    site.add("other", None, {})
    (site.folder / "other-1.0.dist-info" / "entry_points.txt").write_text("[console_scripts]\na\n")
    assert discover() == ()


@pytest.mark.rule("R4")
@pytest.mark.parametrize(("number", "stale"), [("0.1", "acme"), ("2.0", "tokenspeed-core")])
def test_a_manifest_of_another_format_is_not_guessed_at(site, number, stale):
    other = 'manifest = "{}"\nnew_key = 1\n'
    site.add("acme", other.format(number), ENTRY_POINTS)
    (plugin,) = discover()
    assert f"has format {number}; this engine reads 1.0" in str(plugin.error)
    assert plugin.error.fix == f"pip install --upgrade {stale}"
    assert plugin.offers == (("model", "acme"),)


@pytest.mark.rule("R14")
def test_devices_and_needs_arrive(site):
    site.provide(
        "acme", "observer", "watch", devices=("cuda", "xpu"), more='needs = ["token_ids"]\n'
    )
    (plugin,) = discover()
    (provision,) = plugin.provisions
    assert (provision.devices, provision.needs) == (("cuda", "xpu"), ("token_ids",))
    assert provision.plugin == "acme"


@pytest.mark.rule("R9")
@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ("rms_norn@1:acme", 'names no public op (did you mean "rms_norm@1"?)'),
        ("rms_norm:acme", 'names no public op (did you mean "rms_norm@1"?)'),
        ("rms_norm@2:acme", 'names no public op (did you mean "rms_norm@1"?)'),
        ("acme::op:acme", "names no public op"),
        ("rms_norm@1", 'is not OP:NAME, such as "rms_norm@1:acme"'),
        ("acme::op@1", 'is not OP:NAME, such as "rms_norm@1:acme"'),
    ],
)
def test_a_kernel_claims_an_op_that_there_is(site, claim, message):
    site.provide("acme", "kernel", "acme", claims=(claim,))
    (plugin,) = discover()
    assert isinstance(plugin.error, ManifestError)
    assert message in str(plugin.error)


def test_a_kernel_may_claim_an_op_of_its_vendor(site):
    site.provide("acme", "kernel", "acme", claims=("rms_norm@1:acme", "acme::op@1:fast"))
    assert discover()[0].error is None


def test_an_observer_claims_nothing(site):
    site.provide("acme", "observer", "acme", claims=("all",))
    assert "observers claim nothing" in str(discover()[0].error)


@pytest.mark.rule("R2")
def test_a_missing_manifest_names_the_places_that_were_searched(site):
    site.add("acme", None, ENTRY_POINTS)
    (plugin,) = discover()
    assert isinstance(plugin.error, ManifestError)
    assert str(site.folder / "acme") in str(plugin.error)


def test_a_missing_package_is_not_silent(site):
    site.add("acme", VALID, {**ENTRY_POINTS, "tokenspeed.plugins": {"acme": "acmf:x.toml"}})
    (plugin,) = discover()
    assert "no package acmf" in str(plugin.error)


@pytest.mark.parametrize("with_manifest", [True, False])
@pytest.mark.rule("R1")
def test_code_that_no_manifest_declares_is_refused(site, with_manifest):
    groups = {**ENTRY_POINTS, "tokenspeed.kernel": {"fast": "acme:kernels"}}
    if not with_manifest:
        del groups["tokenspeed.plugins"], groups["tokenspeed.model"]
    site.add("acme", VALID, groups)
    (plugin,) = discover()
    assert 'no manifest provides kernel "fast"' in str(plugin.error)


@pytest.mark.rule("R12")
def test_discovery_imports_neither_torch_nor_any_plugin(site):
    """In a process of its own, on the real import path and with what is really installed."""
    site.add("acme", VALID, ENTRY_POINTS)
    program = """
        import sys
        from tokenspeed.plugins.discover.discovery import discover
        found = discover()
        assert any(p.id == "acme" for p in found), found
        packages = {p.distribution.replace("-", "_") for p in found} | {"torch", "numpy", "acme"}
        assert not packages & set(sys.modules), packages & set(sys.modules)
    """
    lines = "\n".join(line.strip() for line in program.splitlines())
    path = os.pathsep.join([str(site.folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", lines], env=environment, check=False)
    assert done.returncode == 0


@pytest.mark.rule("R2")
@pytest.mark.rule("R11")
@pytest.mark.parametrize(
    ("manifest", "value", "cause"),
    [
        (VALID + f"x = {'[' * 2000}{']' * 2000}\n", "tokenspeed_plugin.toml", RecursionError),
        (VALID, "a" * 300, OSError),
        (VALID + f'[[native]]\nfile = "{"n" * 300}"\n', "tokenspeed_plugin.toml", OSError),
    ],
    ids=["deep", "long-file", "long-library"],
)
def test_whatever_breaks_the_reading_of_one_plugin_keeps_no_other_from_view(
    site, manifest, value, cause
):
    plugins = {"acme": f"acme:{value}"}
    site.add("acme", manifest, {**ENTRY_POINTS, "tokenspeed.plugins": plugins})
    site.provide("other", "model", "other", claims=("OtherForCausalLM",))
    acme, other = discover()
    assert other.error is None
    assert isinstance(acme.error, ManifestError)
    assert "acme 1.0 cannot be read" in acme.error.what
    assert isinstance(acme.error.__cause__, cause)
    assert len(acme.error.reason) < 120


@pytest.mark.rule("R11")
@pytest.mark.parametrize("name", ["entry_points.txt", "METADATA"])
def test_a_pipe_among_the_metadata_is_not_waited_for(site, name):
    site.provide("acme", "model", "acme", claims=("AcmeForCausalLM",))
    pipe = site.folder / "acme-1.0.dist-info" / name
    pipe.unlink()
    os.mkfifo(pipe)
    (plugin,) = discover()
    assert f"{name} is no regular file" in plugin.error.what


@pytest.mark.rule("R10")
@pytest.mark.parametrize(
    "name", ["none", "a,b", "a b", "a=b", "-a", "\N{LATIN SMALL LETTER DOTLESS I}"]
)
@pytest.mark.parametrize("key", ["id", "name"])
def test_a_name_that_no_list_can_say_is_refused(site, key, name):
    site.add("acme", VALID.replace(f'{key} = "acme"', f'{key} = "{name}"'), ENTRY_POINTS)
    (plugin,) = discover()
    assert isinstance(plugin.error, ManifestError)
    assert f"{key} m" in plugin.error.what
    assert name in plugin.error.what


def test_control_characters_reach_no_terminal(site):
    site.add("acme", VALID.replace("AcmeFor", "\\u001b[31m"), ENTRY_POINTS)
    info = site.folder / "acme-1.0.dist-info"
    (info / "METADATA").write_text("Name: acme\x1b[32m\nVersion: 1.0\x07\n")
    odd = "[tokenspeed.plugins]\na\x1b[33m = acme:tokenspeed_plugin.toml\n"
    (info / "entry_points.txt").write_text(odd)
    (plugin,) = discover()
    shown = [plugin.id, plugin.owner, plugin.error.what, plugin.error.where, plugin.error.fix]
    assert all(text.isprintable() for text in shown)
    assert r"claims holds a character that cannot be shown: ['\x1b[31m" in plugin.error.what


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ('manifest = "1.0"\nid = "acme"\n', "it provides nothing"),
        ("\ufeff" + VALID, "it begins with a byte order mark"),
    ],
)
def test_what_is_no_plugin_says_so(site, manifest, said):
    site.add("acme", manifest, ENTRY_POINTS)
    (plugin,) = discover()
    assert said in plugin.error.what
