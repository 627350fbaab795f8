# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Distributions as pip would install them, written into a folder, with real discovery on top."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import importlib_metadata
import pytest

PLATFORM = """
from tokenspeed_sdk.contracts import Accept, Decline

class Platform:
    name = "{name}"
    embedded = {embedded}

    def probe(self):
        return {verdict}

    def prepare(self, threads):
        pass

    def open(self, index=0):
        raise RuntimeError('no device to open')

make = Platform
"""


class Site:
    """One folder of the import path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def add(
        self,
        distribution: str,
        manifest: str | None,
        entry_points: dict[str, dict[str, str]],
        code: str = "",
        version: str = "1.0",
    ) -> None:
        """Write a distribution whose one package holds ``code`` and ``manifest``."""
        package = self.folder / distribution.replace("-", "_")
        package.mkdir()
        (package / "__init__.py").write_text(dedent(code))
        if manifest is not None:
            (package / "tokenspeed_plugin.toml").write_text(dedent(manifest))
        info = self.folder / f"{package.name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        lines = []
        for group, entries in entry_points.items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")

    def provide(
        self,
        distribution: str,
        contract: str,
        name: str,
        *,
        claims: tuple[str, ...] = (),
        number: str = "1.0",
        devices: tuple[str, ...] = (),
        code: str = "",
        attribute: str = ":make",
        version: str = "1.0",
        more: str = "",
    ) -> None:
        """A well-formed plugin that provides one object; ``more`` ends its manifest."""
        manifest = f'manifest = "1.0"\nid = "{distribution}"\n'
        manifest += f'[[provides]]\ncontract = "{contract}"\nnumber = "{number}"\n'
        manifest += f'name = "{name}"\nclaims = {list(claims)}\ndevices = {list(devices)}\n'
        manifest += more
        package = distribution.replace("-", "_")
        entry_points = {
            "tokenspeed.plugins": {distribution: f"{package}:tokenspeed_plugin.toml"},
            f"tokenspeed.{contract}": {name: package + attribute},
        }
        self.add(distribution, manifest, entry_points, code, version)

    def platform(
        self,
        distribution: str,
        name: str,
        *,
        embedded: bool = False,
        verdict: str = "Accept(10, 'is there')",
        prefix: str = "",
        **manifest: Any,
    ) -> None:
        """A plugin that provides a platform; ``prefix`` is code that runs at its import."""
        code = PLATFORM.format(name=name, embedded=embedded, verdict=verdict)
        self.provide(distribution, "platform", name, code=prefix + code, **manifest)


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Site]]:
    """Two folders that come first on the import path; nothing outside them is discovered."""
    found = [Site(tmp_path / "one"), Site(tmp_path / "two")]
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [*(str(s.folder) for s in found), *sys.path])

    def distributions():  # type: ignore[no-untyped-def]
        ours = [entry for entry in sys.path if Path(entry).parent == tmp_path]
        return importlib_metadata.Distribution.discover(path=ours)

    monkeypatch.setattr(importlib_metadata, "distributions", distributions)
    yield found
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.fixture
def site(sites: list[Site]) -> Site:
    return sites[0]
