# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Cached pages: whose they are, what they mean, and that none is lost. Tests are named after ids in
the README beside them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import Answer, Engine, ScriptedMailbox, all_at_once, engine, greedy, submit
from moves import HookedDevice, unreliable
from safetensors.torch import load_file, save_file
from tokenspeed._scheduler import Finish
from tokenspeed.messages import EngineInput, Submit
from tokenspeed_cpu.platform import CpuPlatform
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.modeling import FP8_KV

VOCABULARY = 97
Script = Callable[[int, dict[int, Answer]], EngineInput | None]


def tokens(mailbox: ScriptedMailbox) -> dict[int, list[int]]:
    return {request: answer.tokens for request, answer in mailbox.answers.items()}


def random_prompt(luck: random.Random, length: int) -> list[int]:
    return [luck.randrange(VOCABULARY - 1) for _ in range(length)]


def at_rest(built: Engine) -> None:
    """Every page of both tiers is accounted for, and nobody holds one."""
    ledger = built.scheduler.ledger()
    assert ledger.balanced, ledger.detail
    assert (ledger.active, ledger.in_transfer, ledger.host_in_transfer) == (0, 0, 0)
    assert ledger.free + ledger.cached == ledger.total
    assert ledger.host_free + ledger.host_cached == ledger.host_total


def with_scales(folder: Path, target: Path, scale: float) -> Path:
    """The same model with scales of KV."""
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    for layer in range(2):
        for kind in ("k_scale", "v_scale"):
            tensors[f"model.layers.{layer}.self_attn.{kind}"] = torch.tensor([scale])
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_c2_eight_bit_pages_are_right_when_the_pool_is_always_full(
    tiny_llama: Path, delaying: Device
) -> None:
    """48 requests with common beginnings in 40 pages: the answers are those without any reuse."""
    luck = random.Random(2)
    stems = [random_prompt(luck, 22) for _ in range(3)]
    asked = [stems[i % 3] + random_prompt(luck, 1 + i % 9) for i in range(48)]
    requests = [submit(i, prompt, 12) for i, prompt in enumerate(asked)]
    with engine(
        tiny_llama, CpuPlatform().open(), pages=800, prefix_cache=False, kv_dtype=FP8_KV
    ) as built:
        wanted = tokens(built.run(all_at_once(requests)))
    with engine(tiny_llama, delaying, pages=40, kv_dtype=FP8_KV) as built:
        mailbox = built.run(all_at_once(requests))
        counters = built.scheduler.counters()
        at_rest(built)
    assert counters.evictions > 20
    assert sum(answer.cached_tokens > 0 for answer in mailbox.answers.values()) > 20
    assert tokens(mailbox) == wanted


def in_turns(requests: list[Submit]) -> Script:
    """Sends each request once the one before is answered."""
    sent = 0

    def script(_: int, answers: dict[int, Answer]) -> EngineInput | None:
        nonlocal sent
        over = sum(answer.finish != Finish.NONE for answer in answers.values())
        if sent == len(requests):
            return None
        if over < sent:
            return EngineInput()
        sent += 1
        return EngineInput(submits=[requests[sent - 1]])

    return script


@pytest.mark.parametrize("kv_dtype", [None, FP8_KV], ids=["plain", "fp8"])
def test_c3_c10_the_fourth_time_is_the_first(
    tiny_llama: Path, delaying: Device, kv_dtype: str | None
) -> None:
    """The same prompt four times, others between; one sequence at a time."""
    luck = random.Random(3)
    prompt = random_prompt(luck, 41)
    asked = [prompt if i % 3 == 0 else random_prompt(luck, 30) for i in range(10)]
    requests = [submit(i, each, 10) for i, each in enumerate(asked)]
    with engine(tiny_llama, delaying, pages=200, max_seqs=1, kv_dtype=kv_dtype) as built:
        answers = built.run(in_turns(requests)).answers
    assert [answers[i].cached_tokens for i in (0, 3, 6, 9)] == [0, 40, 40, 40]
    assert answers[0].tokens == answers[3].tokens == answers[6].tokens == answers[9].tokens
    if kv_dtype is None:
        assert answers[0].tokens == greedy(tiny_llama, prompt, 10)


def test_c9_pages_from_the_host_are_the_askers_own(tiny_llama: Path, delaying: Device) -> None:
    """60 prompts with one beginning and a secret each, twice, over a device pool of a few."""
    luck = random.Random(9)
    stem = random_prompt(luck, 9)
    asked = [stem + random_prompt(luck, 20) for _ in range(60)]
    with engine(tiny_llama, delaying, pages=44, host_pages=900) as built:
        first = built.run(all_at_once([submit(i, p, 6) for i, p in enumerate(asked)]))
        again = built.run(all_at_once([submit(100 + i, p, 6) for i, p in enumerate(asked)]))
        counters = built.scheduler.counters()
        at_rest(built)
    assert counters.loaded_pages > 100
    for i, prompt in enumerate(asked):
        assert first.answers[i].tokens == again.answers[100 + i].tokens, i
        if i % 10 == 0:
            assert first.answers[i].tokens == greedy(tiny_llama, prompt, 6), i


def test_c12_retraction_with_a_host_tier_of_one_page(tiny_llama: Path, delaying: Device) -> None:
    luck = random.Random(12)
    asked = [random_prompt(luck, 10) for _ in range(2)]
    with engine(tiny_llama, delaying, pages=20, host_pages=1) as built:
        mailbox = built.run(all_at_once([submit(i, p, 60) for i, p in enumerate(asked)]))
        assert built.scheduler.counters().retractions > 0
        at_rest(built)
    for i, prompt in enumerate(asked):
        assert mailbox.answers[i].tokens == greedy(tiny_llama, prompt, 60)


@pytest.mark.parametrize("failing", [0.0, 0.3])
def test_c14_c15_an_abort_while_pages_move_loses_none(
    tiny_llama: Path, cpu: Device, failing: float
) -> None:
    """Requests are aborted right when they end, and while their pages are on the way."""
    luck = random.Random(15)
    asked = [random_prompt(luck, 30) for _ in range(12)]
    prompts = [asked[luck.randrange(12)] for _ in range(120)]
    slow = HookedDevice(cpu, unreliable(15, failing=failing, longest=0.01))

    def script(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        if step >= 400:
            return None
        over = [r for r, answer in answers.items() if answer.finish != Finish.NONE]
        aborts = over[-3:] + ([step // 3 - 1] if step % 6 == 0 else [])
        submits = [submit(step // 3, prompts[step // 3], 3)] if step % 3 == 0 and step < 360 else []
        return EngineInput(submits=submits, aborts=[a for a in aborts if a >= 0])

    with engine(tiny_llama, cpu, pages=44, host_pages=60, mover_device=slow) as built:
        answers = built.run(script).answers
        assert built.scheduler.counters().stored_pages > 10
        at_rest(built)
    kept = [r for r, answer in answers.items() if answer.finish == Finish.LENGTH]
    assert len(kept) > 30
    for request in kept[::9]:
        assert answers[request].tokens == greedy(tiny_llama, prompts[request], 3)


def test_c18_admission_is_all_or_nothing(tiny_llama: Path, delaying: Device) -> None:
    """Twenty at once, of which few fit."""
    luck = random.Random(18)
    asked = [random_prompt(luck, luck.randrange(20, 60)) for _ in range(20)]
    with engine(tiny_llama, delaying, pages=30, max_seqs=8) as built:
        answers = built.run(all_at_once([submit(i, p, 8) for i, p in enumerate(asked)])).answers
        at_rest(built)
    assert {answer.finish for answer in answers.values()} == {Finish.LENGTH}
    assert len(answers) == 20


def test_c19_a_prompt_in_chunks_of_four(tiny_llama: Path, delaying: Device) -> None:
    prompt = random_prompt(random.Random(19), 200)
    with engine(tiny_llama, delaying, max_step_tokens=8, max_seqs=4) as built:
        answers = built.run(all_at_once([submit(1, prompt, 5)])).answers
        at_rest(built)
    assert answers[1].tokens == greedy(tiny_llama, prompt, 5)


def test_c78_scales_of_kv_reach_whoever_writes_and_reads(
    tiny_llama: Path, tmp_path: Path, cpu: Device
) -> None:
    """So small a scale cuts keys and values off: the answers must suffer from it."""
    prompt = random_prompt(random.Random(78), 40)
    found = []
    for scale in (0.05, 1e-4):
        folder = with_scales(tiny_llama, tmp_path / str(scale), scale)
        with engine(folder, cpu, kv_dtype=FP8_KV) as built:
            found.append(built.run(all_at_once([submit(1, prompt, 20)])).answers[1].tokens)
    assert found[0] != found[1]
