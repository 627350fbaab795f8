# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The scheduler, by any messages in any order, against a model of its device and its clients."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tokenspeed._scheduler import (
    Blocked,
    CacheGroupConfig,
    Config,
    Finish,
    Plan,
    Rejection,
    Scheduler,
    Updates,
)

from .device import Arrays, Device, Group, Row, rows_of
from .truth import VOCAB, Asked

MAX_MODEL_LEN = 40
MESSAGES = 100_000

FULL, SLIDING, STATE = Group("full", 2), Group("sliding", 2, 3), Group("state", 4)
MIXES = [
    [FULL],
    [Group("full", 1)],
    [Group("full", 4)],
    [SLIDING],
    [STATE],
    [FULL, SLIDING],
    [FULL, STATE],
    [Group("sliding", 4, 6), FULL, STATE],
    [FULL, Group("full", 4)],
]


class SchedulerMachine(RuleBasedStateMachine):
    messages: ClassVar[int] = 0  # of all runs: calls that tell the scheduler something

    @initialize(
        groups=st.sampled_from(MIXES),
        pages=st.integers(4, 14),
        host_pages=st.sampled_from([0, 0, 3, 16]),
        max_seqs=st.integers(1, 4),
        extra_tokens=st.integers(0, 8),
        max_row_tokens=st.sampled_from([1, 1, 3]),
        prefill_share=st.sampled_from([0.1, 0.5, 1.0]),
        prefix_cache=st.sampled_from([True, True, True, False]),
        max_wait_steps=st.sampled_from([0, 2, 256]),
        aging_ms=st.sampled_from([1, 10_000]),
        max_bypass=st.sampled_from([0, 2, 16]),
        retention=st.booleans(),
        hash_bits=st.sampled_from([1, 3, 64]),
        depth=st.integers(0, 2),
        base=st.lists(st.integers(0, VOCAB - 1), min_size=24, max_size=24),
    )
    def start(
        self,
        groups: list[Group],
        pages: int,
        host_pages: int,
        max_seqs: int,
        extra_tokens: int,
        max_row_tokens: int,
        prefix_cache: bool,
        depth: int,
        base: list[int],
        **options: Any,
    ) -> None:
        if STATE in groups:
            max_row_tokens = 1  # a recurrent state cannot be rolled back
        if not prefix_cache:
            host_pages = 0
        self.base, self.depth, self.max_row_tokens = base, depth, max_row_tokens
        self.num_pages = pages * len(groups)
        self.max_step_tokens = max_seqs * max_row_tokens + extra_tokens
        # Two ranks get the same calls; every plan must be the same, whatever names its pages.
        configs = [
            Config(
                groups=[CacheGroupConfig(g.kind, g.page_size, g.window) for g in groups],
                num_pages=self.num_pages,
                host_pages=host_pages * len(groups),
                max_seqs=max_seqs,
                max_model_len=MAX_MODEL_LEN,
                max_step_tokens=self.max_step_tokens,
                max_row_tokens=max_row_tokens,
                prefix_cache=prefix_cache,
                hash_seed=seed,
                **options,
            )
            for seed in (0, 1)
        ]
        self.ranks = [Scheduler(config) for config in configs]
        sizes = (len(groups), max_seqs, self.max_step_tokens, max_seqs + MAX_MODEL_LEN + 8)
        self.arrays = [Arrays(config, *sizes) for config in configs]
        self.device = Device(groups, self.num_pages, host_pages * len(groups))
        self.asked: dict[int, Asked] = {}
        self.in_flight: deque[tuple[Any, ...]] = deque()
        self.ended_transfers: list[int] = []
        self.now_ms = 0
        self.last = (-1, 0)  # step and digest

    @property
    def scheduler(self) -> Scheduler:
        return self.ranks[0]

    # -- Messages --------------------------------------------------------------------------------

    @rule(
        shared=st.integers(0, 24),
        suffix=st.lists(st.integers(0, VOCAB - 1), max_size=6),
        max_new_tokens=st.integers(1, 16),
        stop_ids=st.sampled_from([[], [], [], [0], [1, 2]]),
        namespace=st.sampled_from([0, 0, 0, 1]),
        priority=st.sampled_from([0, 0, 0, -2, 1]),
        drafts=st.integers(0, 2),
        deadline=st.sampled_from([0] * 6 + [4]),
        times=st.sampled_from([1, 1, 2, 3]),
    )
    def submit(self, times: int, drafts: int, **request: Any) -> None:
        for _ in range(times):  # the same question, and so the same answer, more than once
            self.submit_one(drafts=min(drafts, self.max_row_tokens - 1), **request)

    def submit_one(
        self,
        shared: int,
        suffix: list[int],
        max_new_tokens: int,
        stop_ids: list[int],
        namespace: int,
        priority: int,
        drafts: int,
        deadline: int,
    ) -> None:
        asked = Asked(namespace, self.base[:shared] + suffix, max_new_tokens, stop_ids, drafts)
        request = len(self.asked) + 1
        first, second = (
            rank.submit(
                request,
                np.array(asked.prompt, np.int32),
                max_new_tokens=max_new_tokens,
                stop_ids=np.array(stop_ids, np.int32),
                namespace=namespace,
                priority=priority,
                draft_tokens=drafts,
                deadline_ms=self.now_ms + deadline if deadline else 0,
                now_ms=self.now_ms,
            )
            for rank in self.ranks
        )
        assert first.rejection == second.rejection
        length = len(asked.prompt) + max_new_tokens
        if not asked.prompt:
            assert first.rejection == Rejection.EMPTY_PROMPT
        elif length > MAX_MODEL_LEN:
            assert first.rejection == Rejection.TOO_LONG
            assert (first.needed, first.available) == (length, MAX_MODEL_LEN)
        elif first.rejection == Rejection.NEVER_FITS:
            assert first.needed > first.available == self.num_pages
        else:
            assert first.rejection == Rejection.ACCEPTED
            self.asked[request] = asked
        self.after_message()

    @precondition(lambda self: self.asked)
    @rule(back=st.integers(0, 5))
    def abort(self, back: int) -> None:
        request = max(1, len(self.asked) - back)
        expected = self.asked[request].finish == Finish.NONE
        assert [rank.abort(request) for rank in self.ranks] == [expected, expected]
        self.take_updates()
        assert self.asked[request].finish != Finish.NONE
        self.after_message()

    @rule(
        steps=st.integers(1, 60),
        accept=st.integers(0, 2),
        ack_every=st.sampled_from([1, 2, 7, 100]),
        failing_ack=st.sampled_from([False, False, True]),
    )
    def run(self, steps: int, accept: int, ack_every: int, failing_ack: bool) -> None:
        for step in range(steps):
            if not self.scheduler.has_work():
                return
            self.step(accept=accept)
            if step % ack_every == 0:
                self.ack(place=step, ok=not failing_ack)

    @rule(row=st.integers(0, 3), with_token=st.booleans())
    def run_with_a_failing_row(self, row: int, with_token: bool) -> None:
        self.step(failing_row=row, with_token=with_token)

    @precondition(lambda self: self.in_flight)
    @rule()
    def commit(self) -> None:
        results = self.in_flight.popleft()
        for rank in self.ranks:
            rank.commit(*results)
        self.device.committed = results[0]
        self.take_updates()
        self.after_message()

    @precondition(lambda self: self.device.transfers)
    @rule(place=st.integers(0, 7), ok=st.sampled_from([True, True, False]))
    def ack(self, place: int, ok: bool) -> None:
        if self.device.transfers:
            numbers = list(self.device.transfers)
            self.end_transfer(numbers[place % len(numbers)], ok)

    def end_transfer(self, number: int, ok: bool) -> None:
        self.device.end_transfer(number, ok)
        assert [rank.ack(number, ok) for rank in self.ranks] == [True, True]
        self.ended_transfers.append(number)
        self.take_updates()
        self.after_message()

    @rule(place=st.integers(0, 7))
    def ack_late_or_unknown(self, place: int) -> None:
        number = ([2**60, *self.ended_transfers][-8:] * 8)[place]
        assert [rank.ack(number, True) for rank in self.ranks] == [False, False]
        self.after_message()

    @precondition(lambda self: not self.in_flight)
    @rule()
    def reset_prefix_cache(self) -> None:
        idle = not self.scheduler.has_work()
        assert [rank.reset_prefix_cache() for rank in self.ranks] == [idle, idle]
        ledger = self.scheduler.ledger()
        assert not idle or ledger.cached == ledger.host_cached == 0
        self.after_message()

    # -- A step ----------------------------------------------------------------------------------

    def step(
        self, failing_row: int | None = None, with_token: bool = False, accept: int = 2
    ) -> Plan:
        while len(self.in_flight) > self.depth:
            self.commit()
        self.now_ms += 1
        ranks = zip(self.ranks, self.arrays, strict=True)
        plan, other = (rank.plan(self.now_ms, arrays.buffers) for rank, arrays in ranks)
        assert plan.digest == other.digest
        self.last = (plan.step, plan.digest)
        self.take_updates()
        rows = rows_of(self.arrays[0], plan)
        self.check_rows(plan, rows)
        self.check_blocked(plan)
        self.device.begin_step(self.arrays[0], plan)
        for row in rows:
            for group in range(len(self.device.groups)):
                table = self.scheduler.page_table(row.request, group).tolist()
                self.device.check_table(row.slot, group, table)
        self.execute(plan, rows, failing_row, with_token, accept)
        self.after_message()
        return plan

    def check_rows(self, plan: Plan, rows: list[Row]) -> None:
        assert [row.decodes for row in rows] == [i < plan.num_decode_rows for i in range(len(rows))]
        assert sum(len(row.tokens) for row in rows) == plan.num_tokens <= self.max_step_tokens
        sampled = (len(row.tokens) if row.decodes else row.emits for row in rows)
        assert sum(sampled) == plan.num_emits
        assert len({row.slot for row in rows}) == len(rows)
        for row in rows:
            asked = self.asked[row.request]
            assert asked.finish == Finish.NONE
            assert len(row.tokens) >= 1
            assert not row.decodes or (row.emits and len(row.tokens) <= 1 + asked.draft_tokens)

    def check_blocked(self, plan: Plan) -> None:
        alive = any(asked.finish == Finish.NONE for asked in self.asked.values())
        transfers = self.device.transfers or plan.num_stores or plan.num_loads
        assert (plan.blocked == Blocked.NO) == (plan.num_rows > 0)
        assert plan.blocked != Blocked.IDLE or not alive
        assert plan.blocked != Blocked.COMMIT or self.in_flight
        assert plan.blocked != Blocked.TRANSFER or transfers
        assert plan.num_rows or transfers or self.in_flight or not alive, "no way on"

    def execute(
        self, plan: Plan, rows: list[Row], failing_row: int | None, with_token: bool, accept: int
    ) -> None:
        counts, failed = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.uint8)
        tokens = np.zeros((len(rows), self.max_row_tokens), np.int32)
        for i, row in enumerate(rows):
            fails = i == failing_row
            results = self.device.run_row(row, self.asked[row.request], fails=fails, accept=accept)
            if fails and with_token:  # a token that no vocabulary has fails the row as well
                results = [-1] * len(results)
                failed[i] = not results
            elif fails:
                failed[i], results = 1, []
            counts[i] = len(results)
            tokens[i, : len(results)] = results
        if rows:
            self.in_flight.append((plan.step, counts, tokens, failed))

    # -- What clients hear, and what always holds ------------------------------------------------

    def take_updates(self) -> None:
        updates, _ = [rank.take_updates() for rank in self.ranks]
        for i, request in enumerate(updates.request.tolist()):
            self.hear(self.asked[request], updates, i)

    def hear(self, asked: Asked, updates: Updates, i: int) -> None:
        assert asked.finish == Finish.NONE, "an update after the end"
        begin, end = updates.token_start[i : i + 2]
        asked.received += updates.tokens[begin:end].tolist()
        asked.finish = Finish(updates.finish[i])
        answer, why = asked.answer()
        assert asked.received == answer[: len(asked.received)]
        if asked.finish in (Finish.STOP, Finish.LENGTH):
            assert (asked.received, asked.finish) == (answer, why)
        assert asked.finish != Finish.FAILED or asked.poisoned
        assert updates.stop_token[i] == (answer[-1] if asked.finish == Finish.STOP else -1)
        assert 0 <= updates.cached_tokens[i] < len(asked.prompt)

    def after_message(self) -> None:
        type(self).messages += 1
        ledger, gauges = self.scheduler.ledger(), self.scheduler.gauges()
        assert ledger.balanced, ledger.detail
        assert (gauges.free_pages, gauges.cached_pages) == (ledger.free, ledger.cached)
        assert gauges.transfers == len(self.device.transfers)
        open_requests = sum(asked.finish == Finish.NONE for asked in self.asked.values())
        alive = gauges.running + gauges.waiting
        assert gauges.loading <= gauges.running
        assert alive <= open_requests <= alive + gauges.draining
        assert self.scheduler.counters().rejected_events == 0

    def teardown(self) -> None:
        if not hasattr(self, "ranks"):
            return
        budget = 200 + 100 * len(self.asked)
        while self.scheduler.has_work():
            if self.step().num_rows == 0:  # nothing to do until results come, or pages
                if self.in_flight:
                    self.commit()
                self.ack(place=0, ok=True)
            budget -= 1
            assert budget > 0, f"stuck: {self.scheduler.ledger().detail}"
        assert all(asked.finish != Finish.NONE for asked in self.asked.values())
        ledger = self.scheduler.ledger()
        assert (ledger.active, ledger.in_transfer, ledger.host_in_transfer) == (0, 0, 0)
        assert self.scheduler.take_rejected_events() == []


def test_any_messages_in_any_order() -> None:
    SchedulerMachine.messages = 0
    rounds = settings(
        max_examples=200,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    for _ in range(12):
        run_state_machine_as_test(SchedulerMachine, settings=rounds)
        if SchedulerMachine.messages >= MESSAGES:
            break
    print(f"{SchedulerMachine.messages} messages")
    assert SchedulerMachine.messages >= MESSAGES
