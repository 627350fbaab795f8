# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Numerics of every Triton kernel, under Triton's interpreter on the CPU."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip(
        "triton is not installed (pip install --no-deps triton==3.6.0)", allow_module_level=True
    )

import numpy as np
import triton

if triton.__version__ < "3.9" and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
    pytest.skip(
        f"the interpreter of triton {triton.__version__} needs numpy < 2.4, found {np.__version__}",
        allow_module_level=True,
    )

CASES = 150
"""About how many there are: fewer would mean that some were not found."""

DECLINED = "declines: takes up to"
"""Why a case may be skipped: one binding meets any number of rows, and the kernel is for few."""


def test_kernels_conform_under_the_interpreter() -> None:
    """The interpreter is chosen for a process."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--tb=short"]
    run = subprocess.run(
        [*command, str(Path(__file__).parent / "interpreted.py")],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    summary = run.stdout.splitlines()[-1]
    print(summary)
    skipped = [line for line in run.stdout.splitlines() if line.startswith("SKIPPED")]
    assert skipped
    assert not [line for line in skipped if DECLINED not in line]
    passed = re.search(r"(\d+) passed", summary)
    assert passed
    assert int(passed[1]) > CASES
