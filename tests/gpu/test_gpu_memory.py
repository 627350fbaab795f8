# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Memory fits by itself: the start-up sizes KV, and the largest steps after it still run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenspeed.bench.engine import launch_plan, measured_engine
from tokenspeed.config import EngineConfig

pytestmark = pytest.mark.gpu

CHUNK = 8192


def config(folder: Path, **options: Any) -> EngineConfig:
    return EngineConfig(model=str(folder), load="dummy", platform="nvidia", **options)


def test_the_largest_steps_run_after_start(gpu: Any, qwen3_8b: Path) -> None:
    """KV takes what is left beside weights and workspace, then a whole chunk and a full batch."""
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    options = {"max_step_tokens": CHUNK, "max_num_seqs": 128}
    with launch_plan(config(qwen3_8b, **options)) as plan, measured_engine(plan) as engine:
        ready = engine.ready
        left = torch.cuda.mem_get_info()[0]
        print(
            f"free before {free / 1e9:.2f} GB; weights {ready.weight_bytes / 1e9:.2f}, "
            f"KV {ready.kv_bytes / 1e9:.2f} in {ready.total_pages} pages, left {left / 1e9:.2f}"
        )
        assert ready.weight_bytes + ready.kv_bytes > 0.9 * free
        for when in ("first", "second"):
            prompt = [random.randrange(100, 900) for _ in range(2 * CHUNK + 5)]
            seconds = engine.prefill(prompt)
            print(f"{when} prefill of {len(prompt)} tokens, chunks of {CHUNK}: {seconds:.3f} s")
        several = [[random.randrange(100, 900) for _ in range(CHUNK // 8)] for _ in range(128)]
        engine.decode(several, 4)
        print(f"left after them {torch.cuda.mem_get_info()[0] / 1e9:.2f} GB")


def test_too_many_pages_name_phase_numbers_and_flag(gpu: Any, small_llama: Path) -> None:
    with (
        pytest.raises(Exception, match="out of memory") as caught,
        launch_plan(config(small_llama, kv_pages=10**9)) as plan,
        measured_engine(plan),
    ):
        pass
    text = str(caught.value)
    print(text)
    assert "'allocate KV'" in text
    assert "needed" in text
    assert "available" in text
    assert "--kv-pages" in text
