# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The scheduler against a model of the device that notices every page mix-up.

The model knows only what a device knows: page tables built from deltas, a KV store addressed by
(page, offset), and each slot's last token. The "KV" of a position is a hash of the whole prefix,
computed from the KV of the position before it as read through the page table. A page that is
shared, reused, evicted or published wrongly changes a hash, and with it the answer.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tokenspeed._scheduler import (
    CacheGroupConfig,
    Config,
    Finish,
    PlanBuffers,
    Rejection,
    RowFlag,
    Scheduler,
)

MAX_MODEL_LEN = 40
VOCAB = 3  # small, so that answers collide with each other and with stop ids


def kv_seed(namespace):
    return 7919 * (namespace + 1)


def kv_next(previous, token):
    return (previous * 6364136223846793005 + token + 1442695040888963407) % 2**64


def next_token(kv):
    return (kv >> 33) % VOCAB


def make_arrays(max_seqs, max_step_tokens, max_deltas):
    rows = {"row_request": "u8", "row_slot": "i4", "row_epoch": "u4", "row_flags": "u1"}
    arrays = {name: np.zeros(max_seqs, dtype) for name, dtype in rows.items()}
    arrays["row_kv_len"] = np.zeros(max_seqs, "i4")
    arrays["row_query_start"] = np.zeros(max_seqs + 1, "i4")
    for name in ("token_ids", "positions"):
        arrays[name] = np.zeros(max_step_tokens, "i4")
    for name in ("delta_slot", "delta_index", "delta_page"):
        arrays[name] = np.zeros((1, max_deltas), "i4")
    arrays["delta_epoch"] = np.zeros((1, max_deltas), "u4")
    return arrays


@dataclass
class Asked:
    """A request as its client sees it, and the truth about it."""

    namespace: int
    prompt: list[int]
    max_new_tokens: int
    stop_ids: list[int]
    sequence: list[int] = field(default_factory=list)  # prompt and every token sampled so far
    received: list[int] = field(default_factory=list)
    finish: Finish = Finish.NONE
    poisoned: bool = False  # a row of it failed: what it computes no longer means anything

    def __post_init__(self):
        self.sequence = list(self.prompt)

    def kvs(self, length):
        kv, out = kv_seed(self.namespace), []
        for token in self.sequence[:length]:
            kv = kv_next(kv, token)
            out.append(kv)
        return out

    def true_answer(self):
        kv = kv_seed(self.namespace)
        for token in self.prompt:
            kv = kv_next(kv, token)
        answer = []
        while True:
            answer.append(next_token(kv))
            if answer[-1] in self.stop_ids:
                return answer, Finish.STOP
            if len(answer) == self.max_new_tokens:
                return answer, Finish.LENGTH
            kv = kv_next(kv, answer[-1])


class Device:
    """Executes plans in order, knowing page tables only from deltas."""

    def __init__(self, page_size, num_pages, max_seqs):
        self.page_size = page_size
        self.num_pages = num_pages
        self.kv = {}
        self.tables = {slot: {} for slot in range(1, max_seqs + 1)}
        self.epochs = dict.fromkeys(self.tables, 0)
        self.last_token = {}

    def apply_deltas(self, arrays, count):
        names = ("delta_slot", "delta_epoch", "delta_index", "delta_page")
        columns = [arrays[name][0, :count].tolist() for name in names]
        for slot, epoch, index, page in zip(*columns, strict=True):
            assert 1 <= page <= self.num_pages
            assert epoch >= self.epochs[slot]
            if epoch > self.epochs[slot]:  # a new tenant
                self.epochs[slot] = epoch
                self.tables[slot] = {}
            assert index not in self.tables[slot], "a table entry was written twice"
            self.tables[slot][index] = page

    def at(self, slot, position):
        return (self.tables[slot][position // self.page_size], position % self.page_size)

    def run_row(self, asked, slot, flags, tokens, start, fails):
        previous = self.kv[self.at(slot, start - 1)] if start else kv_seed(asked.namespace)
        if flags & RowFlag.DECODE:
            tokens = [self.last_token[slot]]
        for position, token in enumerate(tokens, start):
            if not asked.poisoned:
                assert token == asked.sequence[position]
            previous = kv_next(previous, token) if not fails else 13
            self.kv[self.at(slot, position)] = previous
        end = start + len(tokens)
        asked.poisoned |= fails
        if not asked.poisoned:
            stored = [self.kv[self.at(slot, p)] for p in range(end)]
            assert stored == asked.kvs(end), "a row reads KV that is not its own"
        if not flags & RowFlag.EMITS:
            return 0
        assert asked.poisoned or end == len(asked.sequence)
        self.last_token[slot] = next_token(previous)
        asked.sequence.append(self.last_token[slot])
        return self.last_token[slot]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        num_pages=st.integers(3, 14),
        max_seqs=st.integers(1, 4),
        extra_tokens=st.integers(0, 8),
        share=st.sampled_from([0.1, 0.5, 1.0]),
        prefix_cache=st.sampled_from([True, True, True, False]),
        max_wait_steps=st.sampled_from([0, 2, 256]),
        hash_bits=st.sampled_from([1, 3, 64]),
        depth=st.integers(0, 2),
        base=st.lists(st.integers(0, VOCAB - 1), min_size=24, max_size=24),
    )
    def start(self, page_size, num_pages, max_seqs, extra_tokens, share, base, depth, **options):
        self.max_step_tokens = max_seqs + extra_tokens
        self.share = share
        self.base = base
        self.depth = depth
        config = Config(
            groups=[CacheGroupConfig("full", page_size)],
            num_pages=num_pages,
            max_seqs=max_seqs,
            max_model_len=MAX_MODEL_LEN,
            max_step_tokens=self.max_step_tokens,
            prefill_share=share,
            **options,
        )
        # Two ranks get the same calls; every plan must be the same.
        self.ranks = [Scheduler(config), Scheduler(config)]
        self.scheduler = self.ranks[0]
        sizes = (max_seqs, self.max_step_tokens, max_seqs + MAX_MODEL_LEN)
        self.arrays = [make_arrays(*sizes) for _ in self.ranks]
        self.buffers = [PlanBuffers(**arrays) for arrays in self.arrays]
        self.device = Device(page_size, num_pages, max_seqs)
        self.asked = {}
        self.in_flight = deque()
        self.now_ms = 0

    @rule(
        shared=st.integers(0, 24),
        suffix=st.lists(st.integers(0, VOCAB - 1), max_size=6),
        max_new_tokens=st.integers(1, 16),
        stop_ids=st.sampled_from([[], [], [], [0], [1, 2]]),
        namespace=st.sampled_from([0, 0, 0, 1]),
        deadline=st.sampled_from([0] * 9 + [4]),
        copies=st.sampled_from([1, 1, 2, 3]),
    )
    def submit(self, copies, **request):
        for _ in range(copies):  # the same question, and so the same answer, more than once
            self.submit_one(**request)

    def submit_one(self, shared, suffix, max_new_tokens, stop_ids, namespace, deadline):
        prompt = self.base[:shared] + suffix
        request = len(self.asked) + 1
        results = [
            rank.submit(
                request,
                np.array(prompt, np.int32),
                max_new_tokens=max_new_tokens,
                stop_ids=np.array(stop_ids, np.int32),
                namespace=namespace,
                deadline_ms=self.now_ms + deadline if deadline else 0,
                now_ms=self.now_ms,
            )
            for rank in self.ranks
        ]
        rejection = results[0].rejection
        assert rejection == results[1].rejection
        pages = -(-(len(prompt) + max_new_tokens - 1) // self.device.page_size)
        if not prompt:
            assert rejection == Rejection.EMPTY_PROMPT
        elif len(prompt) + max_new_tokens > MAX_MODEL_LEN:
            assert rejection == Rejection.TOO_LONG
        elif pages > self.device.num_pages:
            assert rejection == Rejection.NEVER_FITS
            assert (results[0].needed, results[0].available) == (pages, self.device.num_pages)
        else:
            assert rejection == Rejection.ACCEPTED
            self.asked[request] = Asked(namespace, prompt, max_new_tokens, stop_ids)

    @precondition(lambda self: self.asked)
    @rule(back=st.integers(0, 5))
    def abort(self, back):
        request = max(1, len(self.asked) - back)
        expected = self.asked[request].finish == Finish.NONE
        assert [rank.abort(request) for rank in self.ranks] == [expected, expected]
        self.take_updates()
        assert self.asked[request].finish != Finish.NONE

    @precondition(lambda self: self.scheduler.has_work())
    @rule(times=st.integers(1, 6))
    def run(self, times):
        for _ in range(times):
            self.step()

    @rule(row=st.integers(0, 3))
    def run_with_a_failing_row(self, row):
        self.step(failing_row=row)

    @precondition(lambda self: self.in_flight)
    @rule()
    def commit(self):
        self.commit_oldest()

    @precondition(lambda self: not self.in_flight)
    @rule()
    def reset_prefix_cache(self):
        idle = not self.scheduler.has_work()
        assert [rank.reset_prefix_cache() for rank in self.ranks] == [idle, idle]
        assert not idle or self.scheduler.gauges().cached_pages == 0

    def step(self, failing_row=None):
        while len(self.in_flight) > self.depth:
            self.commit_oldest()
        self.now_ms += 1
        plans = [
            rank.plan(self.now_ms, buffers)
            for rank, buffers in zip(self.ranks, self.buffers, strict=True)
        ]
        assert plans[0].digest == plans[1].digest
        self.take_updates()
        self.check_shape(plans[0])
        self.execute(plans[0], failing_row)
        return plans[0].num_rows

    def check_shape(self, plan):
        a, n = self.arrays[0], plan.num_rows
        lengths = np.diff(a["row_query_start"][: n + 1])
        decodes = (a["row_flags"][:n] & RowFlag.DECODE) != 0
        assert decodes.tolist() == [i < plan.num_decode_rows for i in range(n)]
        assert (lengths >= 1).all()
        assert (lengths[decodes] == 1).all()
        assert lengths.sum() == plan.num_tokens <= self.max_step_tokens
        assert ((a["row_flags"][:n] & RowFlag.EMITS) != 0).sum() == plan.num_emits
        assert len(set(a["row_slot"][:n].tolist())) == n
        if plan.num_decode_rows:
            limit = max(1, int(self.share * self.max_step_tokens + 0.5))
            assert lengths[~decodes].sum() <= limit
        for request in a["row_request"][:n].tolist():
            assert self.asked[request].finish == Finish.NONE

    def execute(self, plan, failing_row):
        a, n = self.arrays[0], plan.num_rows
        self.device.apply_deltas(a, plan.num_deltas[0])
        counts, tokens = np.zeros(n, np.int32), np.zeros((n, 1), np.int32)
        failed = np.zeros(n, np.uint8)
        for row in range(n):
            slot, flags = int(a["row_slot"][row]), int(a["row_flags"][row])
            assert a["row_epoch"][row] == self.device.epochs[slot]
            begin, end = (int(x) for x in a["row_query_start"][row : row + 2])
            start = int(a["row_kv_len"][row]) - (end - begin)
            assert a["positions"][begin:end].tolist() == list(range(start, start + end - begin))
            failed[row] = row == failing_row
            tokens[row, 0] = self.device.run_row(
                self.asked[int(a["row_request"][row])],
                slot,
                flags,
                a["token_ids"][begin:end].tolist(),
                start,
                bool(failed[row]),
            )
            counts[row] = 0 if failed[row] else flags & RowFlag.EMITS
        if n:
            self.in_flight.append((plan.step, counts, tokens, failed))

    def commit_oldest(self):
        results = self.in_flight.popleft()
        for rank in self.ranks:
            rank.commit(*results)
        self.take_updates()

    def take_updates(self):
        updates, _ = [rank.take_updates() for rank in self.ranks]
        for i, request in enumerate(updates.request.tolist()):
            asked = self.asked[request]
            assert asked.finish == Finish.NONE, "an update after the end"
            begin, end = updates.token_start[i : i + 2]
            asked.received += updates.tokens[begin:end].tolist()
            asked.finish = Finish(updates.finish[i])
            answer, why = asked.true_answer()
            assert asked.received == answer[: len(asked.received)]
            if asked.finish in (Finish.STOP, Finish.LENGTH):
                assert (asked.received, asked.finish) == (answer, why)
            assert asked.finish != Finish.FAILED or asked.poisoned
            is_stop = asked.finish == Finish.STOP
            assert updates.stop_token[i] == (answer[-1] if is_stop else -1)
            assert 0 <= updates.cached_tokens[i] < len(asked.prompt)
            assert updates.cached_tokens[i] % self.device.page_size == 0

    @invariant()
    def nothing_is_lost(self):
        ledger = self.scheduler.ledger()
        assert ledger.balanced, ledger.detail
        gauges = self.scheduler.gauges()
        assert (gauges.free_pages, gauges.cached_pages) == (ledger.free, ledger.cached)
        open_requests = sum(a.finish == Finish.NONE for a in self.asked.values())
        alive = gauges.running + gauges.waiting + gauges.draining
        assert gauges.running + gauges.waiting <= open_requests <= alive
        assert self.scheduler.counters().rejected_events == 0

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        budget = 200 + 100 * len(self.asked)
        while self.scheduler.has_work():
            if self.step() == 0 and self.in_flight:
                self.commit_oldest()  # nothing to do until results come
            budget -= 1
            assert budget > 0, f"stuck: {self.scheduler.ledger().detail}"
        assert all(a.finish != Finish.NONE for a in self.asked.values())
        ledger = self.scheduler.ledger()
        assert ledger.balanced, ledger.detail
        assert ledger.active == 0, ledger.detail
        assert self.scheduler.take_rejected_events() == []


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
