# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The device's page tables against the scheduler's, and whether the comparison can fail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from churn import Churn
from harness import ScriptedMailbox, all_at_once, engine, submit
from tokenspeed._scheduler import Finish, Plan
from tokenspeed.bench.engine import launch_plan
from tokenspeed.config import EngineConfig
from tokenspeed.engine.start import build_engine
from tokenspeed.engine.verify import PageTableError, PageTableVerifier
from tokenspeed_cpu.platform import CpuPlatform
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.testing.platform.devices import DelayingDevice, ReplayingDevice

STEPS = 1000


@pytest.mark.parametrize("prefix_cache", [True, False], ids=["prefix", "no-prefix"])
def test_tables_hold_over_a_thousand_steps_of_churn(
    tiny_llama: Path, replaying: ReplayingDevice, prefix_cache: bool
) -> None:
    """Every step is verified: the harness's engine does that."""
    churn = Churn(seed=21, steps=STEPS)
    device = ReplayingDevice(DelayingDevice(replaying, seed=22))
    with engine(tiny_llama, device, pages=40, prefix_cache=prefix_cache) as built:
        answers = built.run(churn.script).answers
        counters, ledger = built.scheduler.counters(), built.scheduler.ledger()
    assert counters.steps >= STEPS
    assert counters.retractions > 10
    assert sum(answer.finish == Finish.ABORTED for answer in answers.values()) > 50
    assert {answers[request].finish for request in churn.kept} == {Finish.LENGTH}
    assert ledger.balanced, ledger.detail


class _Scheduler:
    """Means three pages for request 5 in each of two groups, and none for any other.

    In the second group a window has passed the first of them.
    """

    def page_table(self, request: int, group: int) -> np.ndarray:
        pages = [0, 5, 6] if group else [7, 8, 9]
        return np.array(pages if request == 5 else [], np.int32)


def _tables() -> list[np.ndarray]:
    first, second = np.zeros((5, 4), np.int32), np.zeros((5, 4), np.int32)
    first[2] = [7, 8, 9, 77]  # what lies behind a request's pages is stale and does not matter
    second[2] = [4, 5, 6, 0]  # and what a window has passed may be
    first[1] = second[1] = 3
    return [first, second]


def _check(tables: list[np.ndarray]) -> None:
    verifier = PageTableVerifier(_Scheduler(), groups=2)  # type: ignore[arg-type]
    plan = SimpleNamespace(step=3, num_rows=2)
    host = {"row_request": np.array([5, 6], np.uint64), "row_slot": np.array([2, 1], np.int32)}
    verifier.expect(plan, host)  # type: ignore[arg-type]
    verifier.check(plan, tables)  # type: ignore[arg-type]


@pytest.mark.parametrize(("group", "page"), [(0, 8), (1, 5)])
def test_a_wrong_entry_is_named(group: int, page: int) -> None:
    tables = _tables()
    _check(tables)
    tables[group][2, 1] = 4
    with pytest.raises(
        PageTableError,
        match=f"after step 3 entry 1 of request 5 in slot 2, cache group {group}, is page 4 on the "
        f"device and page {page} in the scheduler",
    ):
        _check(tables)


@pytest.mark.parametrize("slot", [0, -1])
def test_nobody_has_pages(slot: int) -> None:
    tables = _tables()
    tables[1][slot, 3] = 1
    with pytest.raises(PageTableError, match="nobody's has a page"):
        _check(tables)


def test_the_flag_reaches_the_loop(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From EngineConfig, through the start-up, to a comparison of every step."""
    checked: list[int] = []
    check = PageTableVerifier.check

    def counted(self: PageTableVerifier, plan: Plan, tables: Sequence[np.ndarray]) -> None:
        assert len(tables) == 1
        check(self, plan, tables)
        checked.append(plan.step)

    monkeypatch.setattr(PageTableVerifier, "check", counted)
    for flag, steps in ((False, 0), (True, 7)):
        config = EngineConfig(
            model=str(tiny_llama), platform="cpu", threads=1, verify_page_tables=flag
        )
        mailbox = ScriptedMailbox(all_at_once([submit(1, [5, 6, 7], 7)]))
        with launch_plan(config) as plan:
            executor, loop = build_engine(plan, CpuPlatform(), mailbox)  # type: ignore[arg-type]
            loop.run()
            executor.close()
        assert len(mailbox.answers[1].tokens) == 7
        assert len(checked) == steps


def test_a_delta_that_the_device_drops_ends_the_engine(tiny_llama: Path, cpu: Device) -> None:
    """The whole way: a device that loses one page-table entry is found out in that step."""
    with engine(tiny_llama, cpu) as built:
        step = built.executor._step
        update, calls = step._update, 0

        def lossy(*args: object) -> None:
            nonlocal calls
            calls += 1
            if calls != 3:
                update(*args)

        step._update = lossy
        with pytest.raises(PageTableError, match="page 0 on the device"):
            built.run(all_at_once([submit(1, list(range(1, 9)), 40)]))
        assert calls in (3, 4)  # the next step is queued when the wrong one is looked at
