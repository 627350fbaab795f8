# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The repository itself: what is installed is this tree, licences are named, machines are not."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from distributions import DISTRIBUTIONS, ROOT, Distribution, source_files

CODE = {".py", ".pyi", ".h", ".cpp", ".cc", ".sh", ".cmake"}
COMMENTED = {"CMakeLists.txt", "Makefile", "run"}
SPDX = ("SPDX-License-Identifier: MIT", "SPDX-FileCopyrightText: The TokenSpeed authors")

# Built from parts, so that this file does not match itself.
MACHINE_PATH = re.compile(
    "(?<![\\w.~}/<])/(?:" + "|".join(["home", "root", "work", "Users"]) + ")/"
)
REGISTRY = re.compile("|".join(["pypi" + r"\.org", "python" + "hosted", r"download\.py" + "torch"]))


def tracked() -> list[Path]:
    """Files that are, or would be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


@pytest.mark.parametrize("ours", DISTRIBUTIONS, ids=lambda d: d.name)
def test_installed_version_is_this_trees(ours: Distribution) -> None:
    project = tomllib.loads((ours.path / "pyproject.toml").read_text())["project"]
    assert version(ours.name) == project["version"]


@pytest.mark.parametrize("ours", [d for d in DISTRIBUTIONS if d.package], ids=lambda d: d.name)
def test_installed_files_are_this_trees(ours: Distribution) -> None:
    """Byte for byte, wherever the interpreter finds the package."""
    assert ours.package is not None
    spec = find_spec(ours.package)
    assert spec is not None
    assert spec.submodule_search_locations
    installed = [Path(folder) for folder in spec.submodule_search_locations]
    source = ours.path / ours.package
    compared = 0
    for path in source_files(source):
        name = path.relative_to(source)
        found = [folder / name for folder in installed if (folder / name).is_file()]
        assert found, f"{name} of {ours.name} is not installed: run `make setup`"
        same = found[0].read_bytes() == path.read_bytes()
        assert same, f"{found[0]} is not this tree's {name}: run `make setup`"
        compared += 1
    assert compared >= 2


def test_every_source_file_names_its_licence() -> None:
    lacking = []
    for path in tracked():
        if path.suffix in CODE or path.name in COMMENTED:
            head = text_of(path).splitlines()[:4]
            if not all(any(line in row for row in head) for line in SPDX):
                lacking.append(str(path.relative_to(ROOT)))
    assert not lacking


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY], ids=["machine path", "registry host"])
def test_no_file_knows_a_machine_or_a_registry(pattern: re.Pattern[str]) -> None:
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked()
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not hits
