# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the loop does with transfers, on a scheduler and an executor that are played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tokenspeed._scheduler import Blocked, Counters, Gauges
from tokenspeed.cache.transfers import EndedTransfer
from tokenspeed.engine.loop import STALLED_POLL_MS, EngineLoop
from tokenspeed.messages import EngineInput

ENDS = {5: (4, True), 6: (2, False)}
"""Transfer -> after how many looks it ends, and how."""


class _Scheduler:
    """One plan without rows, which starts both transfers; has work until they are acked."""

    def __init__(self, left_behind: int = 0) -> None:
        self.acks: list[tuple[int, bool]] = []
        self.plans = 0
        self._left_behind = left_behind

    def has_work(self) -> bool:
        return len(self.acks) < len(ENDS)

    def plan(self, now_ms: int, buffers: object) -> Any:
        self.plans += 1
        starts = len(ENDS) if self.plans == 1 else 0
        return SimpleNamespace(
            step=self.plans, num_rows=0, num_stores=starts, num_loads=0, blocked=Blocked.TRANSFER
        )

    def ack(self, transfer: int, ok: bool) -> bool:
        self.acks.append((transfer, ok))
        return True

    def ledger(self) -> Any:
        return SimpleNamespace(
            balanced=True,
            active=0,
            in_transfer=0,
            host_in_transfer=self._left_behind,
            detail="host pages in transfer",
        )

    def take_updates(self) -> Any:
        return _NoUpdates()

    def gauges(self) -> Any:
        return _Zeros(Gauges)

    def counters(self) -> Any:
        return _Zeros(Counters)


class _NoUpdates:
    """Nothing happened."""

    def __len__(self) -> int:
        return 0

    def columns(self) -> tuple[bytes, ...]:
        return (b"",) * 6

    def ended(self) -> list[tuple[int, int]]:
        return []


class _Zeros:
    """All numbers of a class, at 0."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> int:
        assert hasattr(self._kind, name)
        return 0


class _Executor:
    """Ends each transfer after some looks."""

    def __init__(self) -> None:
        self.started = self._looks = 0

    def next_buffers(self) -> Any:
        return SimpleNamespace(scheduler=None, host={})

    def start_transfers(self, plan: Any) -> None:
        self.started += plan.num_stores

    def ended_transfers(self) -> list[EndedTransfer]:
        self._looks += bool(self.started)
        return [EndedTransfer(n, ok) for n, (at, ok) in ENDS.items() if at == self._looks]


class _Mailbox:
    """Notes how long the loop is ready to wait; stops it when that is for ever."""

    def __init__(self) -> None:
        self.timeouts: list[int | None] = []

    def receive(self, timeout_ms: int | None) -> list[EngineInput]:
        self.timeouts.append(timeout_ms)
        return [EngineInput(stop=True)] if timeout_ms is None else []

    def send(self, output: object) -> None:
        pass


def run(scheduler: _Scheduler) -> tuple[_Executor, _Mailbox]:
    executor, mailbox = _Executor(), _Mailbox()
    played: Any = (scheduler, executor, mailbox)
    EngineLoop(*played).run()
    return executor, mailbox


def test_a_plan_without_rows_starts_transfers_and_each_end_is_told() -> None:
    scheduler = _Scheduler()
    executor, mailbox = run(scheduler)
    assert executor.started == 2
    assert scheduler.acks == [(6, False), (5, True)]
    # The loop looks again after a short time until nothing moves, and then waits for a message.
    assert mailbox.timeouts == [0, *[STALLED_POLL_MS] * 4, None]


def test_an_idle_engine_with_pages_in_transfer_is_a_fault() -> None:
    with pytest.raises(RuntimeError, match="while idle: host pages in transfer"):
        run(_Scheduler(left_behind=1))
