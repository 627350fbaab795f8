# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Advice about a plugin that came from its source, and not from an index."""

from __future__ import annotations

import json

import pytest
from tokenspeed.plugins.discover import origin
from tokenspeed.plugins.discover.discovery import discover

SOURCE = "file:///home/acme/kernels"


@pytest.fixture
def noted(site):
    """noted(url): a plugin without its manifest, for which pip noted that it came from there."""

    def add(url):
        site.add("acme", None, {"tokenspeed.plugins": {"acme": "acme:tokenspeed_plugin.toml"}})
        note = site.folder / "acme-1.0.dist-info" / "direct_url.json"
        note.write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))

    return add


def test_what_was_installed_from_a_folder_is_put_right_there(noted):
    noted(SOURCE)
    remove = "or remove it: pip uninstall acme"
    assert origin.complain("acme") == f"put it right in its source ({SOURCE}), {remove}"
    (plugin,) = discover()
    assert plugin.error.fix.startswith(f"reinstall it from where it came: {SOURCE}; {remove}")
    assert SOURCE in origin.upgrade("acme")


def test_what_came_from_a_repository_is_told_to_its_authors(noted):
    noted("https://example.com/acme.whl")
    assert origin.mend("acme") == "report it to the authors of acme"
    assert origin.reinstall("acme").endswith("https://example.com/acme.whl")


@pytest.mark.parametrize("note", ["", "[]", "{", '{"dir_info": {}}'])
def test_what_says_nothing_of_itself_came_from_an_index(noted, site, note):
    noted(SOURCE)
    (site.folder / "acme-1.0.dist-info" / "direct_url.json").write_text(note)
    assert origin.reinstall("acme") == "pip install --force-reinstall acme"
    assert origin.reinstall("absent") == "pip install --force-reinstall absent"
