# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Libraries that are compiled when a test wants them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenspeed_sdk.contracts.kernel import Kernel
from tokenspeed_sdk.native import include_dir, open_library
from tokenspeed_sdk.native.kernel import load_kernels

SOURCE = Path(__file__).with_name("library.c")
WARNINGS = ("-std=c99", "-D_POSIX_C_SOURCE=199309L", "-pedantic", "-Wall", "-Wextra", "-Werror")

Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def cc() -> str:
    """The C compiler."""
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if found is None:
        pytest.skip("there is no C compiler on this machine (cc, gcc or $CC)")
    return found


@pytest.fixture(scope="session")
def compiled(cc: str, tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """``compiled(*flags)``: the shared library of library.c with these flags, made once each."""
    known: dict[tuple[str, ...], Path] = {}

    def make(*flags: str, source: Path = SOURCE) -> Path:
        if (key := (str(source), *flags)) not in known:
            out = tmp_path_factory.mktemp("native") / "libtest.so"
            line = [cc, *WARNINGS, "-O1", "-shared", "-fPIC", f"-I{include_dir()}", *flags]
            subprocess.run([*line, str(source), "-o", str(out), "-lm"], check=True)
            known[key] = out
        return known[key]

    return make


@pytest.fixture(scope="session")
def kernels(compiled: Compile) -> dict[str, Kernel]:
    """The kernels of the library that fits, by op."""
    return {kernel.op: kernel for kernel in load_kernels(open_library(compiled()))}
