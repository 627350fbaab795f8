# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What is found, from metadata and manifests alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tokenspeed.plugins.discovery import discover
from tokenspeed.plugins.errors import ManifestError

VALID = """
id = "acme"
[[provides]]
contract = "model"
number = "0.1"
name = "acme"
claims = ["AcmeForCausalLM"]
"""
ENTRY_POINTS = {
    "tokenspeed.plugins": {"acme": "acme:tokenspeed_plugin.toml"},
    "tokenspeed.model": {"acme": "acme.model"},
}


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


def test_distributions_without_our_entry_points_are_not_plugins(site):
    site.add("other", None, {"console_scripts": {"other": "other:main"}})
    assert discover() == ()


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
        ('number = "0.1"', 'number = "1"', "MAJOR.MINOR"),
        ("claims =", "claim =", 'unknown key "claim"; did you mean "claims"?'),
        ('["AcmeForCausalLM"]', "[1]", "claims must be a list of strings"),
        ('name = "acme"', 'name = "acmee"', 'model "acmee" has no entry point'),
    ],
)
def test_a_wrong_manifest_is_a_value_that_names_file_and_field(site, old, new, message):
    assert old in VALID
    site.add("acme", VALID.replace(old, new), ENTRY_POINTS)
    (plugin,) = discover()
    assert isinstance(plugin.error, ManifestError)
    assert message in str(plugin.error)
    assert plugin.error.where == str(site.folder / "acme" / "tokenspeed_plugin.toml")
    assert "pip uninstall acme" in plugin.error.fix


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
def test_code_that_no_manifest_declares_is_refused(site, with_manifest):
    groups = {**ENTRY_POINTS, "tokenspeed.kernel": {"fast": "acme:kernels"}}
    if not with_manifest:
        del groups["tokenspeed.plugins"], groups["tokenspeed.model"]
    site.add("acme", VALID, groups)
    (plugin,) = discover()
    assert 'no manifest provides kernel "fast"' in str(plugin.error)


def test_discovery_imports_neither_torch_nor_any_plugin(site):
    """In a process of its own, on the real import path and with what is really installed."""
    site.add("acme", VALID, ENTRY_POINTS)
    program = """
        import sys
        from tokenspeed.plugins.discovery import discover
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
