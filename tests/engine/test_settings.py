# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What an operator sets, and where it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from harness import ScriptedMailbox, all_at_once, engine, submit
from tokenspeed._scheduler import KvEvent, Tier
from tokenspeed.bench.engine import launch_plan
from tokenspeed.cli.options import engine_config, engine_options
from tokenspeed.config import ConfigError, EngineConfig
from tokenspeed.engine import tiers
from tokenspeed.engine.loop import EngineLoop
from tokenspeed.engine.memory import KvBudget, cut_short, host_tier_pages
from tokenspeed.engine.start import build_engine
from tokenspeed.messages import EngineInput, EngineOutput, EngineReady, FromEngine, Load
from tokenspeed.plugins.errors import UnknownNameError
from tokenspeed_cpu.platform import CpuPlatform
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.testing.platform.devices import ReplayingDevice

PAGE_BYTES = 16 * 2 * 2 * 2 * 8 * 4  # of the tiny Llama: tokens, layers, K and V, heads, head_dim


@dataclass
class ReadyMailbox(ScriptedMailbox):
    """Keeps what the engine says of itself, too."""

    ready: list[EngineReady] = field(default_factory=list)
    load: Load = field(default_factory=Load)

    def send(self, output: FromEngine) -> None:
        if isinstance(output, EngineReady):
            self.ready.append(output)
        elif isinstance(output, EngineOutput):
            self.load = output.load
        super().send(output)


class Capturing(CpuPlatform):
    """The CPU, with graphs."""

    def open(self, index: int = 0) -> Any:
        return ReplayingDevice(super().open(index))


@contextmanager
def built(
    folder: Path, mailbox: ScriptedMailbox, *, captures: bool = False, **settings: Any
) -> Iterator[EngineLoop]:
    """An engine as ``ts serve`` builds it, on the CPU."""
    config = EngineConfig(model=str(folder), platform="cpu", threads=1, **settings)
    platform: Any = Capturing() if captures else CpuPlatform()
    with launch_plan(config) as plan:
        executor, loop = build_engine(plan, platform, mailbox)  # type: ignore[arg-type]
        yield loop
        executor.close()


def test_settings_reach_the_scheduler(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    config = tiers.Config

    def listening(**settings: Any) -> Any:
        told.update(settings)
        return config(**settings)

    monkeypatch.setattr(tiers, "Config", listening)
    mailbox = ReadyMailbox(all_at_once([]))
    with built(
        tiny_llama,
        mailbox,
        host_kv_gb=PAGE_BYTES * 21.5 / 1e9,
        itl_target_ms=25.0,
        priority_aging_ms=777,
        retention=False,
        kv_events=True,
    ):
        pass
    wanted = {
        "host_pages": 20,
        "itl_target_ms": 25.0,
        "aging_ms": 777,
        "retention": False,
        "kv_events": True,
    }
    assert {name: told[name] for name in wanted} == wanted
    (ready,) = mailbox.ready
    assert (ready.host_pages, ready.block_size) == (20, 16)


def test_the_whole_engine_uses_its_host_tier(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two prompts that do not fit together take turns; the ledger has the tier's accounts."""
    prompts = [[seed + i % 50 for i in range(70)] for seed in (1, 40)]
    order = [0, 1, 0, 1]

    def script(step: int, answers: dict[int, Any]) -> EngineInput | None:
        over = sum(bool(answer.finish) for answer in answers.values())
        if over == len(order):
            return None if asked else asked.append(step) or EngineInput(ask_ledger=1)
        if over == len(answers) and over not in sent:
            sent.add(over)
            return EngineInput(submits=[submit(over, prompts[order[over]], 4)])
        return EngineInput()

    sent: set[int] = set()
    asked: list[int] = []
    mailbox = ReadyMailbox(script)
    caplog.set_level("INFO")
    with built(tiny_llama, mailbox, kv_pages=6, host_kv_gb=0.001) as loop:
        loop.run()
    assert [mailbox.answers[i].tokens for i in (2, 3)] == [
        mailbox.answers[i].tokens for i in (0, 1)
    ]
    load = mailbox.outputs[-1].load
    assert load.host_cached_tokens >= 48
    assert load.host_total_pages == mailbox.ready[0].host_pages > 200
    (ledger,) = [output.ledger for output in mailbox.outputs if output.ledger]
    assert ledger.host_total == ledger.host_free + ledger.host_cached + ledger.host_in_transfer
    assert ledger.host_cached > 0
    assert f"host tier 0.00 GB in {ledger.host_total} pages" in caplog.text


def test_a_higher_priority_goes_first(tiny_llama: Path, cpu: Device) -> None:
    submits = [submit(i, [5 + i] * 9, 3) for i in range(4)]
    submits[2] = msgspec.structs.replace(submits[2], priority=50)
    submits[3] = msgspec.structs.replace(submits[3], priority=-50)
    with engine(tiny_llama, cpu, max_seqs=1) as one_at_a_time:
        mailbox = one_at_a_time.run(all_at_once(submits))
    started = [one.request for output in mailbox.outputs for one in output.started]
    assert started == [2, 0, 1, 3]


def test_a_commit_says_how_long_the_step_took(tiny_llama: Path, delaying: Device) -> None:
    class Listening:
        """The scheduler, and what it is told of times."""

        def __init__(self, scheduler: Any) -> None:
            self._scheduler = scheduler
            self.elapsed_us: list[int] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(self._scheduler, name)

        def commit_sampled(self, step: int, buffers: Any, elapsed_us: int) -> None:
            self.elapsed_us.append(elapsed_us)
            self._scheduler.commit_sampled(step, buffers, elapsed_us)

    with engine(tiny_llama, delaying) as built:
        listening: Any = Listening(built.scheduler)
        built.scheduler = listening
        mailbox = built.run(all_at_once([submit(0, [5, 6, 7], 6)]))
    told = [step.duration_us for output in mailbox.outputs for step in output.steps]
    assert listening.elapsed_us[: len(told)] == told
    assert len(told) >= 6
    assert min(told) > 0


def test_kv_events_name_the_blocks_of_a_prompt(tiny_llama: Path, cpu: Device) -> None:
    prompt = list(range(1, 15))
    with engine(tiny_llama, cpu, kv_events=True, host_pages=40) as built:
        mailbox = built.run(all_at_once([submit(0, prompt, 1)]))
    columns = [output.kv_events for output in mailbox.outputs if output.kv_events is not None]
    kinds = np.frombuffer(b"".join(one.kind for one in columns), np.uint8)
    tiers_ = np.frombuffer(b"".join(one.tier for one in columns), np.uint8)
    on_device = [
        tokens
        for one in columns
        for tokens, tier in zip(_blocks(one), np.frombuffer(one.tier, np.uint8), strict=True)
        if tier == Tier.DEVICE
    ]
    assert set(kinds.tolist()) == {KvEvent.STORED}
    assert set(tiers_.tolist()) == {Tier.DEVICE, Tier.HOST}
    assert on_device == [prompt[start : start + 4] for start in (0, 4, 8)]


def _blocks(columns: Any) -> list[list[int]]:
    starts = np.frombuffer(columns.token_start, np.int32)
    tokens = np.frombuffer(columns.tokens, np.int32).tolist()
    return [tokens[a:b] for a, b in pairwise(starts)]


def test_no_events_unless_asked(tiny_llama: Path, cpu: Device) -> None:
    with engine(tiny_llama, cpu) as built:
        mailbox = built.run(all_at_once([submit(0, list(range(1, 15)), 1)]))
    assert all(output.kv_events is None for output in mailbox.outputs)


def test_gigabytes_are_pages_beside_the_null_page() -> None:
    config = EngineConfig(model="m", host_kv_gb=1.0)
    assert host_tier_pages(config, 1_000_000) == 999
    assert host_tier_pages(EngineConfig(model="m"), 1_000_000) == 0
    with pytest.raises(ValueError, match=r"--host-kv-gb 1 holds no page: .* at least 1\.2, or 0"):
        host_tier_pages(config, 600_000_000)
    with pytest.raises(MemoryError, match=r"--host-kv-gb 1e\+06 is more than the .* GB of memory"):
        host_tier_pages(EngineConfig(model="m", host_kv_gb=1e6), 1_000_000)


@pytest.mark.parametrize(
    ("settings", "tokens", "said"),
    [
        (
            {"kv_pages": 1},
            16,
            "requests of more than 16 tokens, prompt and answer together, are refused: the KV "
            "memory holds no more; for the 256 of the model give --kv-pages 16 or more",
        ),
        (
            {"kv_pages": 4, "max_model_len": 65},
            64,
            "for the 65 of --max-model-len give --kv-pages 5 or more",
        ),
        ({"kv_pages": 2, "page_size": 1}, 2, "for the 256 of the model give --kv-pages 256"),
        ({"kv_pages": 16}, 256, ""),
        ({"kv_pages": 4, "max_model_len": 64}, 64, ""),
    ],
)
def test_a_pool_that_cuts_requests_short_says_so_once(
    tiny_llama: Path,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    tokens: int,
    said: str,
) -> None:
    mailbox = ReadyMailbox(all_at_once([]))
    with built(tiny_llama, mailbox, **settings):
        assert mailbox.ready[0].max_model_len == tokens
    warnings = [r.getMessage() for r in caplog.records if "KV memory" in r.getMessage()]
    assert len(warnings) == bool(said)
    assert all(said in warning for warning in warnings)


def test_memory_that_cuts_requests_short_names_another_remedy() -> None:
    config = EngineConfig(model="m")
    assert cut_short(config, KvBudget(3, 48), 48) is None
    said = cut_short(config, KvBudget(3, 48), 100)
    assert said is not None
    assert said.endswith("use a machine with more memory, or be content with --max-model-len 48")


def test_a_pool_that_holds_no_request_is_refused(tiny_llama: Path) -> None:
    pools = {"kv_pages": 1, "page_size": 1}
    with (
        pytest.raises(ValueError, match=r"hold 1 token, and a request has 2 .*; give --kv-pages 2"),
        built(tiny_llama, ReadyMailbox(all_at_once([])), **pools),
    ):
        pass


def test_a_host_tier_without_a_prefix_cache_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs the prefix cache, and prefix_cache False"):
        EngineConfig(model="m", host_kv_gb=1.0, prefix_cache=False)


@click.command()
@engine_options
def _command(**values: Any) -> None:
    config = engine_config("m", values)
    click.echo(
        f"{config.host_kv_gb} {config.itl_target_ms} {config.priority_aging_ms} {config.retention}"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "0.0 0.0 10000 True"),
        (
            "--host-kv-gb 2.5 --itl-target-ms 30 --priority-aging-ms 5 --no-retention",
            "2.5 30.0 5 False",
        ),
        ("--host-kv-gb -1", "Invalid value for '--host-kv-gb'"),
        ("--priority-aging-ms 0", "Invalid value for '--priority-aging-ms'"),
        ("--host-kv-gb 1 --no-prefix-cache", "--host-kv-gb 1.0 needs the prefix cache"),
        ("--drafter-model .", "--drafter-model '.' needs --drafter 'NAME': the name of one that"),
        ("--drafter eagle3 --drafter-model /nowhere", "'/nowhere' does not exist"),
    ],
)
def test_options(arguments: str, said: str) -> None:
    assert said in CliRunner().invoke(_command, arguments.split()).output


def test_a_drafter_of_the_config_guesses(tiny_llama: Path) -> None:
    """A random model falls into loops, which the suffix drafter sees coming."""
    prompt = [5, 9, 11] * 12
    answers = {}
    for drafter in (None, "suffix"):
        mailbox = ReadyMailbox(all_at_once([submit(1, prompt, 60)]))
        with built(tiny_llama, mailbox, drafter=drafter, draft_tokens=5) as loop:
            loop.run()
        answers[drafter] = mailbox.answers[1].tokens
        load = mailbox.load
        assert (load.drafted_tokens > 0) == (drafter is not None)
        assert 0 <= load.accepted_tokens <= load.drafted_tokens
    assert answers["suffix"] == answers[None]


def test_a_drafter_that_is_not_there_is_refused_by_name(tiny_llama: Path) -> None:
    mailbox = ReadyMailbox(all_at_once([]))
    with (
        pytest.raises(UnknownNameError, match='no drafter "oracle" is installed'),
        built(tiny_llama, mailbox, drafter="oracle"),
    ):
        pass
