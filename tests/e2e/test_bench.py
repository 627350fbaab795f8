# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``ts bench`` measures engine and gateway: its figures make sense, and nothing may run beside it.

What we want to reach is measured on an idle machine and kept in bench/results. Here the bounds are
looser, because a test machine shares its cores, and a run that misses them may try once more.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tokenspeed.bench.served import TS

LOOSER = 0.7


def bench(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    report = tmp_path / "report.json"
    subprocess.run([*TS, "bench", *arguments, "--save", str(report)], check=True, timeout=400)
    loaded: dict[str, Any] = json.loads(report.read_text())
    return loaded


def missed(report: dict[str, Any], share: float) -> list[dict[str, Any]]:
    return [row for row in report["rows"] if row["bar"] and row["ratio"] < share * row["bar"]]


@pytest.mark.timeout(900)
def test_cpu(demo_folder: Path, tmp_path: Path) -> None:
    arguments = ("cpu", str(demo_folder), "--repetitions", "1")
    report = bench(tmp_path, *arguments)
    assert [(row["what"], row["versus"]) for row in report["rows"]] == [
        ("decode, batch 1", "Transformers"),
        ("decode, batch 1", "linears alone"),
        ("decode, batch 16", "Transformers"),
        ("decode, batch 16", "linears alone"),
        ("prefill, 512 tokens", "Transformers"),
    ]
    timed = {name.split()[-1] for name in report["samples"] if " linears " in name}
    assert timed == {"cpu", "onednn", "torch"}
    if missed(report, LOOSER):
        report = bench(tmp_path, *arguments)
    assert not missed(report, LOOSER)


@pytest.mark.timeout(600)
def test_gateway(demo_folder: Path, tmp_path: Path) -> None:
    arguments = ("gateway", str(demo_folder), "--tokens", "35")
    report = bench(tmp_path, *arguments)
    assert [row["what"] for row in report["rows"]] == ["gateway and front, 35-token prompt"]
    assert all(added > 0 for added in report["samples"]["added ms, 35 tokens"])
    if missed(report, LOOSER / 2):
        report = bench(tmp_path, *arguments)
    assert not missed(report, LOOSER / 2)
