# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The loop with a host tier behind a device pool that is too small: the same answers, by hits."""

from __future__ import annotations

from pathlib import Path

import pytest
from churn import Churn
from conversations import Conversations
from harness import Engine, ScriptedMailbox, all_at_once, engine, greedy, submit
from moves import HookedDevice, unreliable
from tokenspeed._scheduler import Finish
from tokenspeed.messages import EngineInput
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.testing.platform.devices import ReplayingDevice

SMALL = 44  # pages of 4 tokens; one conversation grows to 27
HOST = 400


def conversations() -> Conversations:
    return Conversations(seed=31, number=6, turns=5, first=30, more=11, answer=6, most=2)


def tokens(mailbox: ScriptedMailbox) -> dict[int, list[int]]:
    return {request: answer.tokens for request, answer in mailbox.answers.items()}


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> dict[int, list[int]]:
    """The answers of an engine whose device pool holds everything."""
    from tokenspeed_cpu.platform import CpuPlatform

    with engine(tiny_llama, CpuPlatform().open(), pages=400) as built:
        return tokens(built.run(conversations().script))


def at_rest(built: Engine) -> None:
    """Nothing moves any more, and every page of both tiers is accounted for."""
    ledger = built.scheduler.ledger()
    assert ledger.balanced, ledger.detail
    assert (ledger.in_transfer, ledger.host_in_transfer, ledger.active) == (0, 0, 0)
    assert ledger.host_free + ledger.host_cached == ledger.host_total


@pytest.mark.parametrize("device", ["cpu", "delaying", "replaying"])
def test_turns_come_back_from_the_host(
    tiny_llama: Path, request: pytest.FixtureRequest, device: str, wanted: dict[int, list[int]]
) -> None:
    chosen: Device = request.getfixturevalue(device)
    asked = conversations()
    with engine(tiny_llama, chosen, pages=SMALL, host_pages=HOST) as built:
        mailbox = built.run(asked.script)
        counters = built.scheduler.counters()
        at_rest(built)
    assert tokens(mailbox) == wanted
    assert counters.evictions > 0, "the device pool held everything"
    assert counters.stored_pages > SMALL
    assert counters.loaded_pages > 0
    assert counters.failed_transfers == 0
    assert counters.host_cached_tokens > 100
    load = mailbox.outputs[-1].load
    assert load.host_cached_tokens == counters.host_cached_tokens
    assert (load.stored_pages, load.loaded_pages) == (
        counters.stored_pages,
        counters.loaded_pages,
    )
    for turn in (0, 14, 29):
        assert wanted[turn] == greedy(tiny_llama, asked.prompts[turn], 6)


def test_more_is_hit_than_without(tiny_llama: Path, cpu: Device) -> None:
    hits = []
    for host_pages in (0, HOST):
        with engine(tiny_llama, cpu, pages=SMALL, host_pages=host_pages) as built:
            built.run(conversations().script)
            hits.append(built.scheduler.counters().cached_tokens)
    assert hits[1] > 1.5 * hits[0]


@pytest.mark.parametrize("failing", [0.3, 1.0])
def test_transfers_that_fail_or_are_late_change_no_answer(
    tiny_llama: Path, delaying: Device, cpu: Device, wanted: dict[int, list[int]], failing: float
) -> None:
    flaky = HookedDevice(cpu, unreliable(32, failing=failing, longest=0.004))
    with engine(tiny_llama, delaying, pages=SMALL, host_pages=HOST, mover_device=flaky) as built:
        mailbox = built.run(conversations().script)
        counters = built.scheduler.counters()
        at_rest(built)
    assert tokens(mailbox) == wanted
    assert counters.failed_transfers > 5
    assert (counters.stored_pages == 0) == (failing == 1.0)
    assert mailbox.outputs[-1].load.failed_transfers == counters.failed_transfers


def test_churn_with_an_unreliable_host_tier(tiny_llama: Path, cpu: Device) -> None:
    """Requests are aborted and retracted while their pages move; every step is verified."""
    churn = Churn(seed=33, steps=400)
    flaky = HookedDevice(cpu, unreliable(34, failing=0.2, longest=0.003))
    with engine(
        tiny_llama, ReplayingDevice(cpu), pages=34, host_pages=60, mover_device=flaky
    ) as built:
        answers = built.run(churn.script).answers
        counters = built.scheduler.counters()
        at_rest(built)
    assert counters.retractions > 0  # how many, the times of transfers decide
    assert counters.failed_transfers > 5
    assert counters.loaded_pages > 0
    assert counters.host_evictions > 0
    assert {answers[request].finish for request in churn.kept} == {Finish.LENGTH}
    for request in sorted(churn.kept)[:: max(1, len(churn.kept) // 12)]:
        prompt, length = churn.asked[request]
        assert answers[request].tokens == greedy(tiny_llama, prompt, length)


@pytest.mark.parametrize("device", ["delaying", "replaying"])
def test_a_hit_ends_inside_a_page(
    tiny_llama: Path, request: pytest.FixtureRequest, device: str
) -> None:
    """Prompts leave a common one at every offset of a page: the page is copied, not shared."""
    chosen: Device = request.getfixturevalue(device)
    stem = [(7 * i + 3) % 97 for i in range(40)]
    asked = [stem] + [[*stem[:cut], *[90 - cut] * 9] for cut in range(21, 32)]
    with engine(tiny_llama, chosen) as built:
        first = built.run(all_at_once([submit(0, asked[0], 5)]))
        rest = built.run(all_at_once([submit(i, p, 5) for i, p in enumerate(asked) if i]))
        copies = built.scheduler.counters().page_copies
    answers = first.answers | rest.answers
    for i, prompt in enumerate(asked):
        assert answers[i].tokens == greedy(tiny_llama, prompt, 5), i
        shared = next((n for n in range(40) if prompt[n] != stem[n]), 0) if i else 0
        assert answers[i].cached_tokens == shared, i
    assert copies >= 8, "three of four offsets lie inside a page"


def test_stores_end_after_the_last_answer(tiny_llama: Path, cpu: Device) -> None:
    """They keep the loop awake, without a step; then it is idle."""
    slow = HookedDevice(cpu, unreliable(35, failing=0.0, longest=0.05))
    with engine(tiny_llama, cpu, host_pages=HOST, mover_device=slow) as built:
        mailbox = built.run(all_at_once([submit(0, list(range(1, 60)), 2)]))
        assert built.scheduler.counters().stored_pages > 10
        at_rest(built)
    assert mailbox.answers[0].finish == Finish.LENGTH
    assert mailbox.outputs[-1].load.transfers == 0


def test_a_reset_drops_both_tiers(tiny_llama: Path, cpu: Device) -> None:
    with engine(tiny_llama, cpu, host_pages=HOST) as built:
        built.run(all_at_once([submit(0, list(range(1, 60)), 2)]))
        assert built.scheduler.ledger().host_cached > 10
        mailbox = built.run(
            lambda step, _: EngineInput(reset_cache=True, ask_ledger=8) if step == 0 else None
        )
    (ledger,) = [output.ledger for output in mailbox.outputs if output.ledger]
    assert (ledger.cached, ledger.host_cached, ledger.host_free) == (0, 0, HOST)
    assert ledger.balanced, ledger.detail
