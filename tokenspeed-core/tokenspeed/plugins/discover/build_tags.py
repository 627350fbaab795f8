# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What native libraries were built for, against what is installed; nothing is opened for it.

A library that was linked against another torch or CUDA runtime fails with an undefined symbol deep
inside a launch, or worse does not fail. So tags of the manifest are compared first.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import importlib_metadata
from tokenspeed_sdk.contracts.manifest import NativeLibrary
from tokenspeed_sdk.native import ABI, serves

CXX = "libstdc++-cxx11" if sys.platform == "linux" else None
"""C++ runtime and string ABI of torch's wheels for Linux since torch 2.6."""

_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*['\"](\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Build:
    """What the installed torch was built as; None: there is none, or it does without."""

    torch: str | None
    cuda: str | None
    cxx: str | None


@dataclass(frozen=True)
class NativeFile:
    """A declared library and where it lies; "" when it is in none of its package's folders."""

    library: NativeLibrary
    path: str


@cache
def installed_build() -> Build:
    """Read from torch's metadata and the text of its version file: torch is not imported."""
    try:
        release = importlib_metadata.version("torch").partition("+")[0]
    except importlib_metadata.PackageNotFoundError:
        return Build(None, None, CXX)
    return Build(release, _cuda_of_torch(), CXX)


def mismatches(library: NativeLibrary, build: Build) -> list[str]:
    """Where a library does not fit, one text each; a tag that it does not state always fits."""
    torch = None if build.torch is None else _release(build.torch, like=library.torch)
    pairs = (
        ("torch", library.torch, torch),
        ("CUDA", library.cuda, build.cuda),
        ("C++ runtime", library.cxx, build.cxx),
    )
    wrong = [
        f"built for {what} {wanted}, found {found or 'none'}"
        for what, wanted, found in pairs
        if wanted is not None and wanted != found
    ]
    if library.abi is not None and not serves(library.abi):
        wrong.insert(0, f"built for kernel ABI {library.abi}, found {ABI}")
    return wrong


def _release(version: str, like: str | None) -> str:
    """As many parts of a version as the tag that it is compared with has."""
    parts = 2 if like is None else like.count(".") + 1
    return ".".join(version.split(".")[:parts])


def _cuda_of_torch() -> str | None:
    spec = find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder, "version.py")
        if file.is_file():
            found = _CUDA.search(file.read_text("utf-8"))
            return found and found[1]
    return None
