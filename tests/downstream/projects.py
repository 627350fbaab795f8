# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The strangers' projects: what they say of themselves, and their wheels, a folder for each."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SDK = HERE.parent.parent / "sdk" / "tokenspeed_sdk"

PROJECTS = tuple(sorted(path.parent.name for path in HERE.glob("*/pyproject.toml")))


def metadata(project: str) -> dict[str, Any]:
    """The table [project] of a stranger's pyproject.toml."""
    text = (HERE / project / "pyproject.toml").read_text()
    table: dict[str, Any] = tomllib.loads(text)["project"]
    return table


def kernels() -> dict[str, tuple[str, str]]:
    """Op -> the kernel that a stranger claims for it, and its project."""
    found = {}
    for path in sorted(HERE.glob("*/*/tokenspeed_plugin.toml")):
        for provision in tomllib.loads(path.read_text())["provides"]:
            if provision["contract"] == "kernel":
                for op, _, name in (claim.rpartition(":") for claim in provision["claims"]):
                    found[op] = (name, path.parent.parent.name)
    return found


OWNERS = {name: "{name} {version}".format_map(metadata(name)) for name in PROJECTS}
"""Project -> its distribution with the version, as messages name it."""

_MADE = {"build", "dist", "__pycache__"}
_BUILDS_FROM = {"native-kernel": (SDK / "include", SDK / "native")}
"""What of the sdk goes into a wheel."""
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index")
_LIMIT_S = 180


def install(cache: Path) -> dict[str, Path]:
    """Project -> folder that holds its wheel as pip installs it; built again when it changed."""
    folders = {name: cache / f"{name}-{_digest(name)}" for name in PROJECTS}
    missing = [name for name, folder in folders.items() if not folder.is_dir()]
    for name in missing:
        for old in cache.glob(f"{name}-*"):
            shutil.rmtree(old)
    if missing:
        with tempfile.TemporaryDirectory(dir=cache) as scratch:  # appear whole or not at all
            for name, wheel in _build(missing, Path(scratch)).items():
                target = Path(scratch, "installed", name)
                pip("install", *OFFLINE, "--target", str(target), str(wheel))
                target.rename(folders[name])
    return folders


def _build(names: Sequence[str], scratch: Path) -> dict[str, Path]:
    """Project -> its wheel, built from a copy: builds leave files behind."""
    wheels = {}
    for name in names:
        shutil.copytree(HERE / name, scratch / name, ignore=shutil.ignore_patterns(*_MADE))
        pip("wheel", *OFFLINE, "--wheel-dir", str(scratch / "wheels" / name), str(scratch / name))
        (wheels[name],) = (scratch / "wheels" / name).glob("*.whl")
    return wheels


def pip(command: str, *arguments: str) -> None:
    """Run pip; what it says is only of interest when it fails."""
    done = subprocess.run(
        [*_PIP, command, *arguments], capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _digest(name: str) -> str:
    """Of all that a project's wheel is made from."""
    digest = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()}".encode())
    for folder in (HERE / name, *_BUILDS_FROM.get(name, ())):
        for path in sorted(_files(folder)):
            digest.update(str(path.relative_to(folder)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not _MADE & set(path.relative_to(folder).parts):
            yield path
