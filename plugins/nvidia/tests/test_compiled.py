# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Kernels compiled for GPUs that are not here: instructions, spills, width of loads.

Compiled, not run: sm_100 and gfx950. About 15 s of CPU time an architecture the first time, 4 s
from Triton's cache.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip(
        "triton is not installed (pip install --no-deps triton==3.6.0)", allow_module_level=True
    )

RUNS = {
    "sm_90": (
        "decode", "decode_fp8", "verify", "verify_fp8", "prefill", "prefill_fp8", "prefill_256",
        "sample", "adjusted", "small", "few_rows", "few_rows_fp8", "fp8_linear", "rope_kv_write",
    ),
    "sm_100": ("decode", "verify", "prefill", "small", "rope_kv_write"),
    "gfx950": ("decode", "verify", "prefill", "small", "rope_kv_write"),
}  # fmt: skip
MATRIX = {
    ("sm_90", "decode_units"): "mma.sync.aligned.m16n8k16",
    ("sm_90", "decode_splits"): "mma.sync.aligned.m16n8k16",
    ("sm_90", "verify_units"): "mma.sync.aligned.m16n8k16",
    ("sm_90", "prefill_blocks"): "wgmma.mma_async",
    ("sm_90", "multiply_rows"): "wgmma.mma_async",
    ("sm_90", "multiply_rows_fp8"): "wgmma.mma_async",
    ("sm_90", "multiply_tiles"): "wgmma.mma_async",
    ("sm_100", "decode_units"): "mma.sync.aligned.m16n8k16",
    ("sm_100", "prefill_blocks"): "tcgen05.mma",
    ("gfx950", "decode_units"): "v_mfma_f32_16x16x32_bf16",
    ("gfx950", "prefill_blocks"): "v_mfma_f32_32x32x16_bf16",
}
SPILL_LIMIT = 32
"""Bytes. The prefill tile for sm_90 parks two values outside its loop, decode over codes a few more
where it adds up parts; both were measured faster than smaller tiles, which park none."""

SHARED_LIMIT = {"sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx950": 160 * 1024}
ONE_VALUE_A_THREAD = ("forbid", "pick_winners", "record_rows", "row_likeliest", "write_entries")
"""Kernels that read a few numbers of a whole row, or of few rows: nothing to widen."""


@pytest.fixture(scope="module", params=RUNS)
def compiled(request: pytest.FixtureRequest) -> tuple[str, list[dict[str, Any]]]:
    """The facts of every launch of one architecture, from one process that forks for each."""
    arch = str(request.param)
    run = subprocess.run(
        [sys.executable, Path(__file__).parent / "compiled.py", arch, *RUNS[arch]],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    return arch, [facts for launches in found.values() for facts in launches]


def test_kernels_compile_without_spills(compiled: tuple[str, list[dict[str, Any]]]) -> None:
    arch, launches = compiled
    assert not [facts for facts in launches if "failed" in facts]
    assert not [facts for facts in launches if facts["spills"] > SPILL_LIMIT]
    assert not [facts for facts in launches if facts["shared"] > SHARED_LIMIT[arch]]


def test_products_use_matrix_instructions(compiled: tuple[str, list[dict[str, Any]]]) -> None:
    arch, launches = compiled
    for kernel in (name for of, name in MATRIX if of == arch):
        (facts, *_) = [facts for facts in launches if facts["kernel"] == kernel]
        assert any(name.startswith(MATRIX[arch, kernel]) for name in facts["matrix"]), facts


def test_loads_are_16_bytes_wide(compiled: tuple[str, list[dict[str, Any]]]) -> None:
    arch, launches = compiled
    if arch.startswith("gfx"):
        launches = [facts for facts in launches if facts["matrix"]]
    assert not [
        facts
        for facts in launches
        if not facts["wide_loads"] and facts["kernel"] not in ONE_VALUE_A_THREAD
    ]
