# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Our distributions, in the order in which they build. Standard library only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED_FOLDERS = {"build", "dist", "tests", "__pycache__"}
SKIPPED_SUFFIXES = {".pyc", ".so"}


@dataclass(frozen=True)
class Distribution:
    """One wheel of ours.

    Attributes:
        name: of the distribution.
        folder: relative to the repository's root.
        package: its import package; None for the meta-package.
        reads: folders of other distributions that its build reads.
        script: the command that it installs.
    """

    name: str
    folder: str
    package: str | None
    reads: tuple[str, ...] = ()
    script: str | None = None

    @property
    def path(self) -> Path:
        return ROOT / self.folder

    def sources(self) -> list[Path]:
        """Every file that a build reads, sorted. The meta-package is its metadata alone."""
        if self.package is None:
            return [self.path / "README.md", self.path / "pyproject.toml"]
        folders = (self.path, *(ROOT / folder for folder in self.reads))
        return sorted(path for folder in folders for path in source_files(folder))

    def file_hashes(self) -> dict[str, str]:
        """Digest of every source's content, by path relative to the repository's root."""
        return {
            str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.sources()
        }


def combined(hashes: dict[str, str]) -> str:
    """One digest of names and contents."""
    lines = "".join(f"{name} {content}\n" for name, content in hashes.items())
    return hashlib.sha256(lines.encode()).hexdigest()


def source_files(folder: Path) -> Iterator[Path]:
    """Files below ``folder`` that are neither tests nor made by a build."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name.endswith(".egg-info"):
            continue
        if path.is_dir():
            if path.name not in SKIPPED_FOLDERS:
                yield from source_files(path)
        elif path.suffix not in SKIPPED_SUFFIXES:
            yield path


DISTRIBUTIONS = (
    Distribution("tokenspeed-sdk", "sdk", "tokenspeed_sdk"),
    Distribution("tokenspeed-core", "tokenspeed-core", "tokenspeed", script="ts"),
    Distribution(
        "tokenspeed-cpu", "plugins/cpu", "tokenspeed_cpu", ("sdk/tokenspeed_sdk/include",)
    ),
    Distribution("tokenspeed-models", "plugins/models", "tokenspeed_models"),
    Distribution("tokenspeed-llguidance", "plugins/llguidance", "tokenspeed_llguidance"),
    Distribution("tokenspeed", ".", None),
)
