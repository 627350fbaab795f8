# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The manifest announces exactly the families that the package holds."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from importlib.resources import files


def test_manifest_claims_what_the_classes_serve() -> None:
    text = files("tokenspeed_models").joinpath("tokenspeed_plugin.toml").read_text()
    provisions = tomllib.loads(text)["provides"]
    assert {p["name"] for p in provisions} == {"llama", "qwen2", "qwen3"}
    for provision in provisions:
        (point,) = entry_points(group="tokenspeed.model", name=provision["name"])
        assert tuple(provision["claims"]) == point.load().EntryClass.architectures
