# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Kernels are measured on the GPU, on shapes of Qwen3-8B, and not measured again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tokenspeed.registry.autotune import Autotuner
from tokenspeed.registry.by_rows import text
from tokenspeed.registry.contest import Contest
from tokenspeed.registry.kernels import KernelRegistry
from tokenspeed.registry.timings import TimingCache, about
from tokenspeed_sdk.contracts.kernel import CallSite

pytestmark = pytest.mark.gpu

LINEAR = {"n": 4096, "k": 4096, "bias": False}
ATTENTION = {"heads": 32, "kv_heads": 8, "head_dim": 128, "page_size": 16, "window": None}


def contests(
    gpu: Any, plugins: Any, folder: Path, op: str, traits: dict[str, Any]
) -> dict[str, Contest]:
    """What decided in each bucket of rows."""
    tuner = Autotuner(gpu, TimingCache(about(gpu.capabilities), folder))
    registry = KernelRegistry(plugins, {}, tuner=tuner)
    with closing(tuner):
        registry.bind(CallSite(op, "layer", "bfloat16", gpu.capabilities, traits))
    return {text(each.rows): each for each in registry.bound[0].contests}


def test_one_row_and_many_have_other_winners_and_the_second_start_measures_nothing(
    gpu: Any, plugins: Any, tmp_path: Path
) -> None:
    first = contests(gpu, plugins, tmp_path, "linear@1", LINEAR)
    assert first["1"].source == "measured"
    assert all(timing.us for timing in first["1"].times.values())
    assert first["1"].chosen != first["65-128"].chosen
    second = contests(gpu, plugins, tmp_path, "linear@1", LINEAR)
    assert second["1"].source == "cache"
    assert second["1"].times == first["1"].times


def test_decode_attention_has_two_kernels_with_times(
    gpu: Any, plugins: Any, tmp_path: Path
) -> None:
    """Of up to 128 rows, which captured steps have; above, what plans on the host is left out."""
    found = contests(gpu, plugins, tmp_path, "attention_decode@1", ATTENTION)
    assert len(found) >= 7
    for each in (each for each in found.values() if each.rows[1] is not None):
        timed = [name for name, timing in each.times.items() if timing.us]
        assert len(timed) >= 2, each
        assert each.chosen in timed


def test_times_are_plausible(gpu: Any, plugins: Any, tmp_path: Path) -> None:
    """No kernel reads a weight faster than the memory can: copies of it do not lie in a cache."""
    weight = 2 * LINEAR["n"] * LINEAR["k"]
    for timing in contests(gpu, plugins, tmp_path, "linear@1", LINEAR)["1"].times.values():
        assert timing.us is not None
        assert weight / timing.us / 1e6 < 5.5, "TB/s"


def test_memory_is_given_back(gpu: Any, plugins: Any, tmp_path: Path) -> None:
    before = gpu.memory()
    contests(gpu, plugins, tmp_path, "linear@1", LINEAR)
    after = gpu.memory()
    assert after.used - before.used < 64 << 20
    assert after.peak - after.used < 64 << 20
