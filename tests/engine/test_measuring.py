# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What measurements stand on: the loop's own clock, and ``ts bench decode`` on a tiny model."""

from __future__ import annotations

import time
from pathlib import Path

from tokenspeed.bench.decode import run
from tokenspeed.config import EngineConfig
from tokenspeed.engine.clock import HostClock

WAIT = 0.05


def test_waits_are_not_work() -> None:
    clock = HostClock()
    with clock:
        time.sleep(WAIT)
    before = clock.busy_us()
    assert before < WAIT * 1e6 / 2
    time.sleep(WAIT)
    assert clock.busy_us() - before >= WAIT * 1e6


def test_bench_decode_measures_the_engine_and_its_linears(tiny_llama: Path) -> None:
    config = EngineConfig(model=str(tiny_llama), platform="cpu", threads=1, load="dummy")
    said: list[str] = []
    report = run(
        config, batches=(1, 3), prompt_tokens=40, steps=12, repetitions=2, progress=said.append
    )
    assert [row.what for row in report.rows] == ["decode, batch 1", "decode, batch 3"]
    assert all(row.ours > 0 and row.theirs > 0 for row in report.rows)
    assert {len(values) for values in report.samples.values()} == {2}
    layers, head = 2, 97 * 32
    weights = layers * (32 * 64 + 32 * 32 + 3 * 32 * 64) + head  # qkv, output, MLP
    assert report.notes["linears alone"] == f"{weights * 4 / 1e9:.4g} GB read in a pass"
    assert all(0 < value < 1e5 for value in report.samples["host us 3"])
    assert report.notes["batch 3"].count("ms") == 2
