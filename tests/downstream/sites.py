# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Distributions as pip would leave them, written without a build."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

MARK = "imported"
"""File that a package leaves beside itself when it is imported."""
_LEAVE_MARK = f'import pathlib; pathlib.Path(__file__).with_name("{MARK}").touch()\n'


def imported(site: Path) -> set[str]:
    """Packages below a folder that anybody has imported."""
    return {mark.parent.name for mark in site.glob(f"*/{MARK}")}


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A distribution with one package, one plugin and one provision.

    Attributes:
        format, number: of the manifest, and of the contract.
        native: further lines of the manifest: the table of a library.
        code: of the package; its attribute ``make`` is the entry point, for a model the package.
    """

    distribution: str
    contract: str
    name: str
    code: str
    claims: tuple[str, ...] = ()
    format: str = "1.0"
    number: str = "1.0"
    devices: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    native: str = ""

    @property
    def package(self) -> str:
        return self.distribution.replace("-", "_")

    def write(self, site: Path) -> Path:
        """Install it into a folder; returns the folder of its package."""
        folder = site / self.package
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(_LEAVE_MARK + dedent(self.code))
        (folder / "tokenspeed_plugin.toml").write_text(self._manifest())
        info = site / f"{self.package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {self.distribution}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(self._entry_points())
        return folder

    def _manifest(self) -> str:
        return (
            f'manifest = "{self.format}"\n'
            f'id = "{self.distribution}"\n'
            "[[provides]]\n"
            f'contract = "{self.contract}"\n'
            f'number = "{self.number}"\n'
            f'name = "{self.name}"\n'
            f"claims = {json.dumps(self.claims)}\n"
            f"devices = {json.dumps(self.devices)}\n"
            f"needs = {json.dumps(self.needs)}\n"
            f"{dedent(self.native)}"
        )

    def _entry_points(self) -> str:
        attribute = "" if self.contract == "model" else ":make"
        return (
            "[tokenspeed.plugins]\n"
            f"{self.distribution} = {self.package}:tokenspeed_plugin.toml\n"
            f"[tokenspeed.{self.contract}]\n"
            f"{self.name} = {self.package}{attribute}\n"
        )
