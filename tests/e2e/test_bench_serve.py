# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``ts bench serve`` counts right, however busy the machine is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tokenspeed.bench.served import TS


def test_serve(server: Any, tmp_path: Path) -> None:
    traffic = ("--requests", "6", "--concurrency", "3", "--words", "30", "--output", "8")
    limits = ("--ttft-ms", "60000", "--itl-ms", "60000")
    saved = tmp_path / "report.json"
    command = [*TS, "bench", "serve", server.url, *traffic, *limits, "--save", str(saved)]
    subprocess.run(command, check=True, timeout=400)
    report = json.loads(saved.read_text())
    rows = {row["what"]: row for row in report["rows"]}
    assert rows["errors"]["ours"] == 0
    assert rows["goodput"]["ratio"] == 1
    assert rows["goodput"]["ours"] * 8 == pytest.approx(rows["tokens answered"]["ours"], rel=0.01)
    assert 0 < rows["TTFT p50"]["ours"] <= rows["TTFT p90"]["ours"] <= rows["TTFT p99"]["ours"]
    assert len(report["samples"]["tpot s"]) == 6
