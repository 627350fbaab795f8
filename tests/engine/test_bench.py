# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``ts bench decode``, ``prefill``, ``agentic`` and ``suite`` on a tiny model: seconds each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tokenspeed.cli.bench import bench

ENGINE = ("--platform", "cpu", "--threads", "1", "--load", "dummy", "--kv-pages", "200")
TURNS = ("--users", "2", "--history", "64", "--turns", "2", "--added", "16", "--output", "8")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(bench, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def saved(folder: Path, *arguments: object) -> dict[str, Any]:
    file = folder / "report.json"
    run(*arguments, *ENGINE, "--save", file)
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def test_decode(tiny_llama: Path, tmp_path: Path) -> None:
    work = ("--batch", 1, "--batch", 3, "--prompt-tokens", 40, "--steps", 12, "--repetitions", 2)
    report = saved(tmp_path, "decode", tiny_llama, *work)
    assert [(row["what"], row["versus"]) for row in report["rows"]] == [
        (f"decode, batch {batch}", versus)
        for batch in (1, 3)
        for versus in ("floor", "linears alone")
    ]
    assert all(row["ours"] > row["theirs"] > 0 for row in report["rows"])
    assert {len(values) for values in report["samples"].values()} == {2}
    layers, head = 2, 97 * 32
    weights = layers * (32 * 64 + 32 * 32 + 3 * 32 * 64) + head  # qkv, output, MLP
    assert report["notes"]["linears alone"] == f"{weights * 4 / 1e9:.4g} GB read in a pass"
    assert all(0 < value < 1e5 for value in report["samples"]["host us 3"])
    for point in report["points"]:
        per_user = point["per_device"] / point["concurrency"]
        assert point["per_user"] == pytest.approx(per_user, rel=1e-3)


def test_prefill(tiny_llama: Path, tmp_path: Path) -> None:
    work = ("--tokens", 48, "--tokens", 96, "--repetitions", 3)
    report = saved(tmp_path, "prefill", tiny_llama, *work)
    assert [row["what"] for row in report["rows"]] == ["prefill, 48 tokens", "prefill, 96 tokens"]
    assert all(row["ours"] > row["theirs"] > 0 for row in report["rows"])
    assert len(report["samples"]["prefill 96"]) == 3


def test_suite_writes_what_the_file_promises(tiny_llama: Path, tmp_path: Path) -> None:
    bars = tmp_path / "bars.json"
    bars.write_text(json.dumps({"ms": {"decode_bs1": 1e6, "prefill_48": 1e-6}}))
    work = ("--batch", 1, "--batch", 2, "--prompt-tokens", 40, "--steps", 12, "--tokens", 48)
    command = ("suite", tiny_llama, *work, *TURNS, "--repetitions", 3, "--bars", bars)
    report = saved(tmp_path, *command)
    keys = {"decode_bs1", "decode_bs2", "prefill_48", "agentic_2x64_2turns"}
    assert set(report["ms"]) == set(report["floor_ms"]) == keys
    assert all(report["ms"][key] > report["floor_ms"][key] > 0 for key in keys)
    assert {"fp8", "device", "commit", "command", "date"} < set(report)
    details = report["details"]["given"]
    assert {len(samples) for samples in details["samples_ms"].values()} == {3}
    assert set(details["host_us"]) == {"decode_bs1", "decode_bs2"}
    assert details["kv_bytes_per_token"] == pytest.approx(2 * 2 * 2 * 8 * 4, rel=0.01)
    played = details["agentic"]
    assert len(played) == 3
    # Of 80 and 104 tokens, the cache had the history, and then the first turn but its last token.
    assert all(each["hit_rate"] == pytest.approx((64 + 87) / 184, abs=0.1) for each in played)


def test_suite_says_what_is_missed(tiny_llama: Path, tmp_path: Path) -> None:
    bars = tmp_path / "bars.json"
    bars.write_text(json.dumps({"ms": {"decode_bs1": 1e-6}}))
    work = ("--batch", 1, "--prompt-tokens", 16, "--steps", 4, "--tokens", 16, *TURNS)
    command = ["suite", str(tiny_llama), *map(str, work), "--repetitions", "1", *ENGINE]
    result = CliRunner().invoke(bench, [*command, "--bars", str(bars), "--check"])
    assert result.exit_code == 1
    assert "MISSED" in result.output


def test_what_does_not_fit_is_said_before_anything_starts(tiny_llama: Path) -> None:
    for arguments, said in (
        (("decode", "--max-num-seqs", "4"), "128 requests at once need --max-num-seqs 128"),
        (("prefill", "--max-model-len", "64"), "32769 tokens need --max-model-len 32769"),
    ):
        command, *options = arguments
        result = CliRunner().invoke(bench, [command, str(tiny_llama), *options])
        assert result.exit_code == 2
        assert said in result.output
