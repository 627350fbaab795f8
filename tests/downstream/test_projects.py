# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Each project stands on the sdk alone, and its own tests pass on its installed wheel."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .layers import OURS_DENIED, ts, variables
from .projects import HERE, OFFLINE, OWNERS, PROJECTS, metadata, pip

PYTEST = (sys.executable, "-m", "pytest", "--quiet", "--import-mode=importlib")
STRANGER = ("-c", "/dev/null", "-p", "no:cacheprovider")
"""None of our own settings."""


def test_there_is_one_for_each_way_to_extend_a_server() -> None:
    assert set(PROJECTS) == {"python-kernel", "native-kernel", "model", "observer"}


@pytest.mark.rule("R3")
@pytest.mark.parametrize("name", PROJECTS)
def test_it_requires_and_imports_of_ours_only_the_sdk(name: str) -> None:
    ours = [need for need in metadata(name)["dependencies"] if need.startswith("tokenspeed")]
    (need,) = ours
    assert need.replace("[torch]", "") == "tokenspeed-sdk>=1.0.0.dev0,<2"
    imported = {top for path in (HERE / name).rglob("*.py") for top in imports(path)}
    assert {top for top in imported if top.startswith("tokenspeed")} == {"tokenspeed_sdk"}


def imports(path: Path) -> set[str]:
    """Top names of what a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.rule("R19")
@pytest.mark.parametrize("name", PROJECTS)
def test_its_own_tests_pass(name: str, strangers: dict[str, Path], tmp_path: Path) -> None:
    done = subprocess.run(
        [*PYTEST, *STRANGER, "--rootdir", str(HERE / name), str(HERE / name / "tests")],
        cwd=tmp_path,
        env=variables([strangers[name]]) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.rule("R2")
def test_discovery_finds_all_and_does_not_depend_on_their_order(
    strangers: dict[str, Path], tmp_path: Path
) -> None:
    folders = list(strangers.values())
    listed = ts("plugins", "list", layers=folders)
    assert listed.returncode == 0, listed.stderr
    assert all(owner in listed.stdout for owner in OWNERS.values())
    assert ts("plugins", "list", layers=folders[::-1]).stdout == listed.stdout


@pytest.mark.rule("R17")
def test_the_doctor_finds_nothing_wrong_with_them(strangers: dict[str, Path]) -> None:
    done = ts(
        "plugins", "doctor", *OURS_DENIED, "--deny", "kernel=cpu", layers=list(strangers.values())
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(owner in done.stdout for owner in OWNERS.values())


@pytest.mark.rule("R2")
def test_an_editable_install_is_found(tmp_path: Path) -> None:
    """The manifest lies where the sources are, not where the metadata is."""
    source = shutil.copytree(HERE / "python-kernel", tmp_path / "source")
    pip("install", *OFFLINE, "--prefix", str(tmp_path / "prefix"), "--editable", str(source))
    (site,) = tmp_path.rglob("site-packages")
    links = [Path(line) for link in site.glob("*.pth") for line in link.read_text().split()]
    assert links == [source]
    listed = ts("plugins", "list", layers=[site, *links])
    assert OWNERS["python-kernel"] in listed.stdout
    assert "refused" not in listed.stdout
