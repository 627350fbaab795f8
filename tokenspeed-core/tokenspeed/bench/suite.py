# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Decode, prefill and agentic work in one engine, with floors of the same run, as one JSON file.

The file is written after each part, so that what was measured is kept if the time runs out.
"""

from __future__ import annotations

import datetime
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

from tokenspeed.bench import agentic, decode, prefill
from tokenspeed.bench.report import installed_versions
from tokenspeed.bench.session import Progress, Session, session

if TYPE_CHECKING:
    from tokenspeed.bench.floors import Turns
    from tokenspeed.config import EngineConfig

Milliseconds = dict[str, float]


@dataclass(frozen=True)
class Workloads:
    """What is measured, and how often."""

    batches: Sequence[int] = decode.BATCHES
    prompt_tokens: int = decode.PROMPT_TOKENS
    steps: int = decode.STEPS
    prompts: Sequence[int] = prefill.TOKENS
    turns: Turns = agentic.TURNS
    lockstep: bool = True
    repetitions: int = 3

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and answer together."""
        return max(
            self.prompt_tokens + self.steps + 1,
            max(self.prompts, default=0) + 1,
            self.turns.longest,
        )


class Measured(msgspec.Struct, kw_only=True):
    """One format's figures.

    Attributes:
        ms: medians, in milliseconds: of a decode step, of a prompt's first token, of all turns.
        samples_ms: each repetition.
        behind_ms: of prompts right behind one another, where ``ms`` is of a device at rest.
        host_us: what the engine's loop worked in a decode step, medians.
        linears_ms, linears_by_torch_ms: of all linear layers and the head alone, by the engine's
            kernels and by torch's; the latter tell devices apart.
        agentic: latencies, share of the prompts' tokens that the prefix cache had, and the seconds
            between steps, of each repetition.
    """

    device: str = ""
    ms: Milliseconds = {}
    floor_ms: Milliseconds = {}
    samples_ms: dict[str, list[float]] = {}
    behind_ms: dict[str, list[float]] = {}
    host_us: dict[str, float] = {}
    linears_ms: dict[str, list[float]] = {}
    linears_by_torch_ms: dict[str, list[float]] = {}
    weight_bytes: int = 0
    kv_bytes_per_token: float = 0.0
    read_tb_s: float = 0.0
    matrix_tflops: float = 0.0
    attention_tflops: dict[str, float] = {}
    agentic: list[dict[str, object]] = []

    def add(self, key: str, seconds: Sequence[float], floor_s: float) -> None:
        """The repetitions of one workload, and its floor."""
        self.samples_ms[key] = [round(each * 1e3, 4) for each in seconds]
        self.ms[key] = round(statistics.median(seconds) * 1e3, 4)
        self.floor_ms[key] = round(floor_s * 1e3, 4)


def measure(
    config: EngineConfig, work: Workloads, progress: Progress, changed: Callable[[Measured], None]
) -> Measured:
    """All workloads in one engine; ``changed`` is called after each part."""
    found = Measured()
    rows = sorted({*work.batches, work.turns.users})
    prompts = sorted({*work.prompts, work.turns.history})
    with session(
        config, rows=rows, prompts=prompts, repetitions=work.repetitions, progress=progress
    ) as it:
        _note_machine(it, found)
        changed(found)
        for part in (_decode, _prefill, _agentic):
            part(it, work, found, progress)
            changed(found)
    return found


def _note_machine(it: Session, found: Measured) -> None:
    rates = it.machine.rates
    found.device = it.machine.name
    found.linears_ms = _in_ms(it.machine.linears)
    found.linears_by_torch_ms = _in_ms(it.machine.by_torch)
    found.weight_bytes = it.machine.weight_bytes
    found.kv_bytes_per_token = it.engine.kv_bytes_per_token
    found.read_tb_s = round(rates.read_bytes_s / 1e12, 4)
    found.matrix_tflops = round(rates.matrix_flops_s / 1e12, 2)
    found.attention_tflops = {
        str(n): round(rate / 1e12, 2) for n, rate in rates.attention_flops_s.items()
    }


def _in_ms(taken: Mapping[int, Sequence[float]]) -> dict[str, list[float]]:
    return {
        f"bs{rows}": [round(each * 1e3, 4) for each in seconds] for rows, seconds in taken.items()
    }


def _decode(it: Session, work: Workloads, found: Measured, progress: Progress) -> None:
    context = decode.mean_context(work.prompt_tokens, work.steps)
    for batch in work.batches:
        taken = decode.measure(it.engine, batch, work.prompt_tokens, work.steps, work.repetitions)
        key = f"decode_bs{batch}"
        found.add(key, decode.step_seconds(taken, work.steps), it.floors.decode(batch, context))
        found.host_us[key] = round(statistics.median(decode.host_us(taken)), 1)
        progress(f"{key}: {found.ms[key]} ms, {found.host_us[key]} us of the host")


def _prefill(it: Session, work: Workloads, found: Measured, progress: Progress) -> None:
    taken = prefill.measure(it.engine, work.prompts, work.repetitions, progress)
    for length, each in taken.items():
        found.add(f"prefill_{length}", each.rested, it.floors.prefill(length))
        found.behind_ms[f"prefill_{length}"] = [round(s * 1e3, 4) for s in each.behind]


def _agentic(it: Session, work: Workloads, found: Measured, progress: Progress) -> None:
    taken = agentic.measure(
        it.engine, work.turns, work.repetitions, progress, lockstep=work.lockstep
    )
    seconds = [played.seconds for played in taken]
    found.add(agentic.name(work.turns), seconds, it.floors.agentic(work.turns))
    found.agentic = [agentic.summary(played) for played in taken]


class File:
    """The JSON file of a run, written again whenever something was measured."""

    def __init__(
        self, path: Path | None, config: EngineConfig, work: Workloads, command: str
    ) -> None:
        self._path = path
        self._found: dict[str, Measured] = {}
        self._facts: dict[str, object] = {
            "command": command,
            "commit": commit(Path(config.model)),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "model": Path(config.model).name,
            "versions": installed_versions(),
            "workloads": work,
        }

    def write(self, kind: str, found: Measured) -> None:
        """``kind``: "ms" in the format that is asked for first, "fp8" in the second."""
        self._found[kind] = found
        if self._path is None:
            return
        first, second = self._found["ms"], self._found.get("fp8", Measured())
        content = {
            "ms": first.ms,
            "floor_ms": first.floor_ms,
            "fp8": second.ms,
            "device": first.device,
            **self._facts,
            "details": self._found,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def commit(folder: Path) -> str:
    """Of the working tree that a folder lies in, as git describes it."""
    try:
        run = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return run.stdout.strip() or "unknown"


def missed(found: Measured, bars: Mapping[str, float]) -> list[str]:
    """Workloads that took longer than wanted, or were not measured."""
    return [key for key, bar in bars.items() if found.ms.get(key, float("inf")) > bar]


def show(title: str, found: Measured, bars: Mapping[str, float]) -> None:
    """Print it, what is wanted first."""
    table = Table(title=f"{title}: {found.device}")
    for name in ("bar / ours", "floor / ours", "what", "ms", "bar", "floor", "host us"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for key, ms in found.ms.items():
        bar, floor = bars.get(key), found.floor_ms[key]
        wanted = "" if bar is None else f"{bar / ms:.3f}{'' if ms <= bar else '  MISSED'}"
        host = found.host_us.get(key)
        table.add_row(
            wanted,
            f"{floor / ms:.3f}",
            key,
            f"{ms:.2f}",
            "" if bar is None else f"{bar:g}",
            f"{floor:.2f}",
            "" if host is None else f"{host:.0f}",
        )
    Console().print(table)
