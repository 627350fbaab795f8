# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a machine must have before we can build and install. Standard library only."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

MIN_PYTHON = (3, 11)
MIN_GXX = 11
MIN_FREE_GB = 10
GB = 10**9


def missing_packages() -> list[str]:
    """Debian names of the packages that are needed and not there."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    missing = []
    if gxx_version() < MIN_GXX:
        missing.append("g++")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append(f"{version}-dev")
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        missing.append(f"{version}-venv")
    return missing


def gxx_version() -> int:
    """Major version of the C++ compiler ($CXX or g++); 0 when there is none."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        return 0
    answer = subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True, check=False)
    number = re.match(r"\d+", answer.stdout)
    return int(number[0]) if number else 0


def problems(root: Path, *, needs_disk: bool) -> list[str]:
    """What is in the way, each with the one thing to do; empty when all is well."""
    if sys.version_info < MIN_PYTHON:
        version = ".".join(map(str, sys.version_info[:3]))
        return [
            f"Python {version} is too old, 3.11 or newer is needed: name one with PYTHON=python3.11"
        ]
    found = []
    packages = missing_packages()
    if packages:
        found.append(
            f"missing: {', '.join(packages)} (g++ {MIN_GXX} or newer); install with\n"
            f"    sudo apt install {' '.join(packages)}"
        )
    free = shutil.disk_usage(root).free
    if needs_disk and free < MIN_FREE_GB * GB:
        found.append(
            f"{root}: {free / GB:.1f} GB of disk are free and {MIN_FREE_GB} GB are needed, most of "
            "it for torch: free some, or put this folder on a larger disk"
        )
    return found
