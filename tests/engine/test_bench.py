# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``ts bench decode``, ``prefill``, ``agentic`` and ``suite`` on a tiny model.

An engine takes seconds to start: all but the suite share one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner
from tokenspeed.bench import agentic, decode, prefill, published
from tokenspeed.bench.engine import MeasuredEngine, launch_plan
from tokenspeed.bench.floors import Turns
from tokenspeed.bench.session import Session, session
from tokenspeed.cli.bench import bench
from tokenspeed.config import EngineConfig

ENGINE = ("--platform", "cpu", "--threads", "1", "--load", "dummy", "--kv-pages", "400")
TURNS = ("--users", "2", "--history", "64", "--turns", "2", "--added", "16", "--output", "8")
HIT = (64 + 87) / (80 + 104)
"""The cache has the history, and then the first turn but its last token."""


@pytest.fixture(scope="module")
def running(tiny_llama: Path) -> Iterator[Session]:
    config = EngineConfig(
        model=str(tiny_llama), platform="cpu", threads=1, load="dummy", kv_pages=400
    )
    with session(
        config, rows=(1, 2, 3), prompts=(48, 64, 96), repetitions=2, progress=lambda text: None
    ) as it:
        yield it


@pytest.fixture
def shared(running: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that want an engine get the one that runs."""

    @contextmanager
    def whole(*_: Any, **__: Any) -> Iterator[Session]:
        yield running

    @contextmanager
    def engine(*_: Any) -> Iterator[MeasuredEngine]:
        yield running.engine

    for module in (decode, prefill, agentic):
        monkeypatch.setattr(module, "session", whole)
    monkeypatch.setattr(published, "measured_engine", engine)


def saved(folder: Path, *arguments: object) -> dict[str, Any]:
    report, _ = saved_and_printed(folder, *arguments)
    return report


def saved_and_printed(folder: Path, *arguments: object) -> tuple[dict[str, Any], str]:
    file = folder / "report.json"
    command = [*map(str, arguments), *ENGINE, "--save", str(file)]
    result = CliRunner().invoke(bench, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(file.read_text()), result.output


@pytest.mark.usefixtures("shared")
def test_decode(tiny_llama: Path, tmp_path: Path) -> None:
    work = ("--batch", 1, "--batch", 3, "--prompt-tokens", 40, "--steps", 12, "--repetitions", 2)
    plot = tmp_path / "plot.png"
    report = saved(tmp_path, "decode", tiny_llama, *work, "--plot", plot)
    assert [(row["what"], row["versus"]) for row in report["rows"]] == [
        (f"decode, batch {batch}", versus)
        for batch in (1, 3)
        for versus in ("floor", "linears alone")
    ]
    assert all(row["ours"] > row["theirs"] > 0 for row in report["rows"])
    assert {len(report["samples"][f"step {batch}"]) for batch in (1, 3)} == {2}
    layers, head = 2, 97 * 32
    weights = layers * (32 * 64 + 32 * 32 + 3 * 32 * 64) + head  # qkv, output, MLP
    assert report["notes"]["linears alone"] == f"{weights * 4 / 1e9:.4g} GB read in a pass"
    assert re.fullmatch(r".* KV read at [1-9][\d.]* [GT]B/s", report["notes"]["floor"])
    assert all(0 < value < 1e5 for value in report["samples"]["host us 3"])
    assert [point["concurrency"] for point in report["points"]] == [1, 3]
    for point in report["points"]:
        per_user = point["per_device"] / point["concurrency"]
        assert point["per_user"] == pytest.approx(per_user, rel=1e-3)
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("shared")
def test_weights(tiny_llama: Path, tmp_path: Path) -> None:
    work = ("--batch", 1, "--batch", 2, "--repetitions", 1, "--quantization", "int8")
    report, printed = saved_and_printed(tmp_path, "weights", tiny_llama, *work)
    assert "warming up" in printed
    assert "repetition 1 of 1" in printed
    assert "repetition 0" not in printed
    assert [row["what"] for row in report["rows"]] == ["decode, batch 1", "decode, batch 2"]
    assert all(row["ours"] > 0 and row["theirs"] > 0 for row in report["rows"])
    assert set(report["samples"]) == {f"step {n} {w}" for n in (1, 2) for w in ("int8", "plain")}


@pytest.mark.parametrize(("quantization", "op"), [(None, "linear@1"), ("int8", "linear_int8@1")])
def test_linears_alone_are_those_of_the_format(
    tiny_llama: Path, quantization: Literal["int8"] | None, op: str
) -> None:
    from tokenspeed.bench.linears import LinearsAlone, linear_sites

    config = EngineConfig(
        model=str(tiny_llama), platform="cpu", threads=1, quantization=quantization
    )
    with launch_plan(config) as plan:
        sites, kernels = linear_sites(plan)
        assert [site.op for site in sites] == [op] * 9  # four of each layer, and the head
        assert "cpu" in kernels
        assert LinearsAlone(plan, "cpu", sites).step(3) > 0


def test_weights_wants_to_know_which(tiny_llama: Path) -> None:
    result = CliRunner().invoke(bench, ["weights", str(tiny_llama)])
    assert result.exit_code == 2
    assert "say which format is compared with plain weights: --quantization" in result.output


@pytest.mark.usefixtures("shared")
def test_prefill(tiny_llama: Path, tmp_path: Path) -> None:
    work = ("--tokens", 48, "--tokens", 96, "--repetitions", 3)
    report = saved(tmp_path, "prefill", tiny_llama, *work)
    assert [row["what"] for row in report["rows"]] == ["prefill, 48 tokens", "prefill, 96 tokens"]
    assert all(row["ours"] > row["theirs"] > 0 for row in report["rows"])
    assert len(report["samples"]["prefill 96"]) == 3


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("users", ["--lockstep", "--free"])
def test_agentic(tiny_llama: Path, tmp_path: Path, users: str) -> None:
    report = saved(tmp_path, "agentic", tiny_llama, *TURNS, users, "--repetitions", 2)
    total, hit, *latencies = report["rows"]
    assert total["ours"] > total["theirs"] > 0
    assert hit["ours"] / 100 == pytest.approx(HIT, abs=0.02)
    assert len(latencies) == 6
    assert all(row["ours"] > 0 for row in latencies)
    assert ("lockstep" in report["notes"]["users"]) == (users == "--lockstep")


def test_turns_of_many_users_begin_together(running: Session) -> None:
    """Each brings a page table of 13 pages, and few tokens."""
    work = Turns(users=12, history=192, turns=1, added=8, output=2)
    (played,) = agentic.measure(running.engine, work, 1, lambda text: None, lockstep=True)
    assert played.hit_rate > 0.9
    assert played.work.prefill_steps <= 2  # the first comes alone when the engine is idle


@pytest.mark.usefixtures("shared")
def test_the_published_form(tiny_llama: Path, tmp_path: Path) -> None:
    work = ("--published", "--scale", 0.003, "--concurrency", 1, "--concurrency", 2)
    report = saved(tmp_path, "agentic", tiny_llama, *work)
    rows = {row["what"]: row["ours"] for row in report["rows"]}
    assert len(rows) == 8
    assert 0 < rows["hit rate, concurrency 2"] < 100
    assert rows["tokens per iteration, concurrency 1"] == pytest.approx(1, abs=0.05)
    assert all(
        rows[f"tps/gpu, concurrency {n}"] > rows[f"tps/user, concurrency {n}"] for n in (1, 2)
    )
    assert [point["concurrency"] for point in report["points"]] == [1, 2]


def test_suite_writes_what_the_file_promises(tiny_llama: Path, tmp_path: Path) -> None:
    bars, file = tmp_path / "bars.json", tmp_path / "suite.json"
    bars.write_text(json.dumps({"ms": {"decode_bs1": 1e6, "prefill_48": 1e-6}}))
    work = ("--batch", 1, "--batch", 2, "--prompt-tokens", 40, "--steps", 12, "--tokens", 48)
    options = (*TURNS, "--repetitions", 3, "--bars", bars, "--check", *ENGINE, "--save", file)
    options += ("--fp8", "--quantization fp8 --kv-cache-dtype fp8")
    command = [str(each) for each in ("suite", tiny_llama, *work, *options)]
    result = CliRunner().invoke(bench, command, catch_exceptions=False)
    assert result.exit_code == 1  # a bar is missed
    assert result.output.count("MISSED") == 1
    report = json.loads(file.read_text())
    keys = {"decode_bs1", "decode_bs2", "prefill_48", "agentic_2x64_2turns"}
    assert set(report["ms"]) == set(report["floor_ms"]) == keys
    assert all(report["ms"][key] > report["floor_ms"][key] > 0 for key in keys)
    assert {"device", "commit", "command", "date"} < set(report)
    assert set(report["fp8"]) == keys
    details, fp8 = report["details"]["ms"], report["details"]["fp8"]
    assert fp8["weight_bytes"] < details["weight_bytes"]
    assert fp8["kv_bytes_per_token"] == pytest.approx(details["kv_bytes_per_token"] / 4, rel=0.01)
    assert {len(samples) for samples in details["samples_ms"].values()} == {3}
    assert set(details["host_us"]) == {"decode_bs1", "decode_bs2"}
    assert details["kv_bytes_per_token"] == pytest.approx(2 * 2 * 2 * 8 * 4, rel=0.01)
    assert [each["hit_rate"] for each in details["agentic"]] == pytest.approx([HIT] * 3, abs=0.02)


def test_what_does_not_fit_is_said_before_anything_starts(tiny_llama: Path) -> None:
    for arguments, said in (
        (("decode", "--max-num-seqs", "4"), "128 requests at once need --max-num-seqs 128"),
        (("prefill", "--max-model-len", "64"), "32769 tokens need --max-model-len 32769"),
        (("agentic", "--plot", "a.png"), "give --published too"),
    ):
        command, *options = arguments
        result = CliRunner().invoke(bench, [command, str(tiny_llama), *options])
        assert result.exit_code == 2
        assert said in result.output


def test_a_plot_says_what_it_needs(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenspeed.bench.plot.can_draw", lambda: False)
    result = CliRunner().invoke(bench, ["decode", str(tiny_llama), "--plot", "a.png"])
    assert result.exit_code == 2
    assert "pip install matplotlib" in result.output
