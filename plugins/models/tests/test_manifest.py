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
    models = [p for p in provisions if p["contract"] == "model"]
    assert {p["name"] for p in models} == {"llama", "qwen2", "qwen3"}
    for provision in models:
        (point,) = entry_points(group="tokenspeed.model", name=provision["name"])
        assert tuple(provision["claims"]) == point.load().EntryClass.architectures


def test_manifest_claims_the_drafter_by_its_name() -> None:
    text = files("tokenspeed_models").joinpath("tokenspeed_plugin.toml").read_text()
    (provision,) = [p for p in tomllib.loads(text)["provides"] if p["contract"] == "drafter"]
    (point,) = entry_points(group="tokenspeed.drafter", name=provision["name"])
    assert provision["claims"] == [provision["name"]] == [point.load()().name]
