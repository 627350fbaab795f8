# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Numerics of every Triton kernel, under Triton's interpreter on the CPU."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

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

from nvidia_cases import BOUNDS, TINY

NAMES = [
    *(f"{case}:{dtype}" for dtype in ("float32", "float16") for case in TINY),
    *(f"{case}:bfloat16" for case in TINY if not case.startswith(("decode", "prefill"))),
    *("sample_97:float32", "sample_5000:float32"),
]


@pytest.fixture(scope="module")
def errors() -> dict[str, float | str]:
    """One process runs all cases: the interpreter is chosen for a process. About 15 s."""
    seed = random.SystemRandom().randrange(2**31)
    run = subprocess.run(
        [sys.executable, Path(__file__).parent / "interpreted.py", str(seed)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, f"seed {seed}: {run.stderr}"
    found: dict[str, float | str] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_interpreted_kernel_meets_reference(name: str, errors: dict[str, float | str]) -> None:
    error = errors[name]
    assert isinstance(error, float), error
    assert error <= BOUNDS[name.partition(":")[2]]


def test_every_case_ran(errors: dict[str, float | str]) -> None:
    assert set(errors) == set(NAMES)
