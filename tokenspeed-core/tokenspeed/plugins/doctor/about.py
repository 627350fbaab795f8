# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The environment that plugins are loaded in, as one would paste it into an issue."""

from __future__ import annotations

import platform
from typing import Any

import importlib_metadata
from tokenspeed_sdk.contracts.manifest import CONTRACTS, MANIFEST
from tokenspeed_sdk.native import ABI

from tokenspeed.plugins.discover.build_tags import installed_build
from tokenspeed.plugins.doctor.companions import OURS


def environment() -> dict[str, Any]:
    """Plain data; nothing in it names the machine or its user."""
    build = installed_build()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "torch": build.torch,
        "cuda": build.cuda,
        "cxx": build.cxx,
        "kernel_abi": str(ABI),
        "manifest": str(MANIFEST),
        "contracts": {name: str(number) for name, number in CONTRACTS.items()},
        "ours": {name: _version(name) for name in OURS},
    }


def _version(name: str) -> str | None:
    try:
        return importlib_metadata.version(name)
    except importlib_metadata.PackageNotFoundError:
        return None
