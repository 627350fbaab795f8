# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What holds for every wheel of ours as it holds for a stranger's: found by entry points alone,
silent when imported, on nothing but the sdk, at one version."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from distributions import DISTRIBUTIONS, ROOT, Distribution
from tokenspeed_sdk.contracts.manifest import CONTRACTS, PLUGIN_GROUP

PROJECTS = [ROOT / "pyproject.toml", *sorted(ROOT.glob("*/pyproject.toml"))]
PLUGINS = sorted(ROOT.glob("plugins/*/pyproject.toml"))
WITH_CODE = [ours for ours in DISTRIBUTIONS if ours.package]


def _table(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


@pytest.mark.rule("R1")
@pytest.mark.parametrize("project", PLUGINS, ids=lambda path: path.parent.name)
def test_a_plugin_is_offered_by_entry_points_of_contracts_alone(project: Path) -> None:
    groups = set(_table(project)["project"]["entry-points"])
    assert PLUGIN_GROUP in groups
    assert groups <= {PLUGIN_GROUP, *(f"tokenspeed.{contract}" for contract in CONTRACTS)}


@pytest.mark.rule("R1")
@pytest.mark.parametrize("ours", WITH_CODE, ids=lambda d: d.name)
def test_no_wheel_acts_by_being_installed(ours: Distribution) -> None:
    """Python runs the lines of a .pth file, and usercustomize, at every start."""
    installed = distribution(ours.name)
    url = installed.read_text("direct_url.json") or "{}"
    editable = json.loads(url).get("dir_info", {}).get("editable", False)
    names = [path.name for path in ours.sources()]
    names += [] if editable else [file.name for file in installed.files or []]
    assert len(names) >= 2
    assert not [n for n in names if n.endswith(".pth") or n.endswith("customize.py")]


@pytest.mark.rule("R1", "R12")
@pytest.mark.parametrize("ours", WITH_CODE, ids=lambda d: d.name)
def test_importing_a_package_changes_nothing(ours: Distribution) -> None:
    """No variable, no search path, no import hook, no thread, no torch."""
    program = (
        "import os, sys, threading\n"
        "def state():\n"
        "    return dict(os.environ), sys.path[:], sys.meta_path[:], threading.active_count()\n"
        "before = state()\n"
        f"import {ours.package}\n"
        "assert state() == before\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.rule("R3")
def test_the_import_law_covers_every_plugin_of_ours() -> None:
    """lint-imports enforces it in CI; here: that no package was forgotten."""
    settings = _table(ROOT / "pyproject.toml")["tool"]["importlinter"]
    plugins = {f"tokenspeed_{path.parent.name}" for path in PLUGINS}
    assert plugins | {"tokenspeed", "tokenspeed_sdk"} == set(settings["root_packages"])
    laws = {law["name"]: law for law in settings["contracts"]}
    of_plugins = laws["Plugins import the sdk and nothing of the core"]
    assert set(of_plugins["source_modules"]) == plugins
    assert of_plugins["forbidden_modules"] == ["tokenspeed"]
    assert set(laws["The core imports no plugin"]["forbidden_modules"]) == plugins


def _imports(body: list[ast.stmt]) -> Iterator[str]:
    """Modules that are imported at run time, at any depth."""
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import):
                yield from (name.name for name in inner.names)
            elif isinstance(inner, ast.ImportFrom):
                yield inner.module or "."


@pytest.mark.rule("R3")
def test_contracts_stand_on_the_standard_library() -> None:
    files = sorted((ROOT / "sdk" / "tokenspeed_sdk" / "contracts").glob("*.py"))
    assert len(files) > 5
    for file in files:
        for module in _imports(ast.parse(file.read_text()).body):
            own = module.startswith("tokenspeed_sdk.contracts")
            assert own or module.partition(".")[0] in sys.stdlib_module_names, (file.name, module)


@pytest.mark.rule("R16")
def test_our_distributions_share_one_version_and_pin_each_other() -> None:
    tables = [_table(path)["project"] for path in (*PROJECTS, *PLUGINS)]
    [version] = {table["version"] for table in tables}
    ours = {table["name"] for table in tables}
    pins = 0
    for table in tables:
        extras = table.get("optional-dependencies", {}).values()
        for line in (*table.get("dependencies", []), *(x for extra in extras for x in extra)):
            name = re.split(r"[^\w-]", line)[0]
            if name in ours - {table["name"]}:  # an extra of its own names itself
                assert re.fullmatch(rf"{name}(\[[\w,]+\])?=={re.escape(version)}", line), line
                pins += 1
    assert pins >= len(ours) - 1
