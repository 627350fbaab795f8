# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the engine tells the front: updates of requests, load, refusals, the page ledger."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed._scheduler import Finish, RowFlag
from tokenspeed.engine.roll_call import RollCall
from tokenspeed.messages import (
    CacheLedger,
    EngineOutput,
    KvEventColumns,
    Load,
    PromptLogprobs,
    Rejected,
    Started,
    StepReport,
    TokenLogprobs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed._scheduler import Plan, Scheduler, Updates
    from tokenspeed.engine.clock import HostClock
    from tokenspeed.engine.speculation import Speculation

HEARTBEAT_NS = 1_000_000_000
_NEW_TENANT = int(RowFlag.NEW_TENANT)  # numpy takes 7 us longer for the enum
NOT_A_NUMBER = "the model's logits for this request hold a NaN"


class Reporter:
    """Gathers what happened since the last message."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: HostClock,
        speculation: Speculation,
        *,
        kv_events: bool = False,
    ) -> None:
        """``kv_events``: whether to tell what the prefix cache holds, as the scheduler logs it."""
        self._scheduler = scheduler
        self._speculation = speculation
        self._clock = clock
        self._wants_kv_events = kv_events
        self._roll_call = RollCall()
        self._unstarted: set[int] = set()
        self._started: list[Started] = []
        self._steps: list[StepReport] = []
        self._rejected: list[Rejected] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[PromptLogprobs] = []
        self._finished: list[int] = []
        self._failed: dict[int, str] = {}
        self._reasons: dict[int, str] = {}
        self._ledger_asked = 0
        self._told_idle = True
        self._told_ns = 0

    def waits(self, request: int) -> None:
        """A request that the scheduler gets later, once its grammar is loaded."""
        self._roll_call.begin(request)

    def left(self, request: int) -> None:
        """A client left before the scheduler got its request; nothing happens if that is over."""
        self._roll_call.end(request)

    def received(self, request: int) -> None:
        """A request that was accepted: its first step will be told."""
        self._unstarted.add(request)
        self._roll_call.begin(request)

    def planned(self, plan: Plan, host: Mapping[str, np.ndarray]) -> None:
        """A step was planned into ``host``: note who starts with it. Free where nobody waits."""
        self._roll_call.planned(host["row_request"][: plan.num_rows])
        if not self._unstarted:
            return
        for row in np.flatnonzero(host["row_flags"][: plan.num_rows] & _NEW_TENANT):
            request = int(host["row_request"][row])
            if request in self._unstarted:  # else it was retracted and starts again
                self._unstarted.remove(request)
                # What is cached is not computed: the row begins behind it.
                cached = int(host["positions"][host["row_query_start"][row]])
                self._started.append(Started(request, time.monotonic_ns() // 1000, cached))

    def ended(self, plan: Plan, drafts: int, duration_us: int) -> None:
        """The device ended a step, ``drafts`` of whose tokens were guesses."""
        rows = plan.num_decode_rows  # one token each, and drafts; the others are of prompts
        self._steps.append(StepReport(duration_us, plan.num_tokens - rows - drafts, rows))

    def found(self, logprobs: list[TokenLogprobs], of_prompts: list[PromptLogprobs]) -> None:
        """By the step that is committed now: of the tokens that it drew, and of prompts."""
        self._logprobs = logprobs
        self._prompt_logprobs = of_prompts

    def reject(self, rejected: Rejected) -> None:
        """Tell the front with the next message."""
        self._rejected.append(rejected)
        self._roll_call.end(rejected.request)

    def fail(self, request: int, reason: str) -> None:
        """Tell the front with the next message that a request, which never began, failed."""
        self._failed[request] = reason
        self._roll_call.end(request)

    def explain(self, request: int, reason: str) -> None:
        """Why a request that ends with the next message fails, if it does."""
        self._reasons[request] = reason

    def ask_ledger(self, number: int) -> None:
        """Answer with the next message."""
        self._ledger_asked = number

    def take_finished(self) -> list[int]:
        """Requests that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def collect(self, updates: Updates) -> EngineOutput | None:
        """The next message, or None when there is nothing to say.

        Args:
            updates: what the scheduler told since the last call.

        Becoming idle is said at once, and that work goes on at least every second: a long prefill
        must not look like a dead engine.
        """
        kv_events = self._kv_events()
        failure = self._end(updates)
        stuck = self._roll_call.stuck()
        idle, now_ns = not self._scheduler.has_work(), time.monotonic_ns()
        news = (
            len(updates)
            or self._started
            or self._rejected
            or self._failed
            or self._ledger_asked
            or self._prompt_logprobs
            or stuck
            or kv_events is not None
        )
        if self._told_idle and not idle:  # silence counts from where the work began
            self._told_idle, self._told_ns = False, now_ns
        overdue = idle != self._told_idle or (not idle and now_ns - self._told_ns > HEARTBEAT_NS)
        if not (news or overdue):
            return None
        self._told_idle, self._told_ns = idle, now_ns
        output = EngineOutput(
            *updates.columns(),
            failure=failure | self._failed,
            started=self._started,
            steps=self._steps,
            rejected=self._rejected,
            load=self._load(),
            ledger=self._ledger() if self._ledger_asked else None,
            kv_events=kv_events,
            logprobs=self._logprobs_of(updates),
            prompt_logprobs=self._prompt_logprobs,
            guessed=self._speculation.take_verified(),
            stuck=stuck,
        )
        self._started, self._steps, self._prompt_logprobs = [], [], []
        self._rejected, self._ledger_asked = [], 0
        self._failed, self._reasons = {}, {}
        return output

    def _logprobs_of(self, updates: Updates) -> list[TokenLogprobs]:
        """Those of tokens that are handed out; some were drawn for requests that were over, and
        some behind wrong guesses."""
        logprobs, self._logprobs = self._logprobs, []
        if not logprobs:
            return []
        left = Counter[int]()
        counts = np.diff(updates.token_start).tolist()
        for request, count in zip(updates.request.tolist(), counts, strict=True):
            left[request] += count
        told = []
        for each in logprobs:
            if left[each.request] > 0:
                left[each.request] -= 1
                told.append(each)
        return told

    def _end(self, updates: Updates) -> dict[int, str]:
        """Forget requests that ended; the reason of each that failed."""
        failure = {}
        for request, finish in updates.ended():
            if finish == Finish.FAILED:
                failure[request] = self._reasons.get(request, NOT_A_NUMBER)
            self._unstarted.discard(request)
            self._roll_call.end(request)
            self._finished.append(request)
        return failure

    def _kv_events(self) -> KvEventColumns | None:
        if not self._wants_kv_events:
            return None
        events = self._scheduler.take_kv_events()
        if not len(events.kind):
            return None
        columns = (getattr(events, name).tobytes() for name in KvEventColumns.__struct_fields__)
        return KvEventColumns(*columns)

    def _load(self) -> Load:
        gauges, counters = self._scheduler.gauges(), self._scheduler.counters()
        return Load(
            running=gauges.running + gauges.draining,
            waiting=gauges.waiting,
            waiting_tokens=gauges.waiting_tokens,
            free_pages=gauges.free_pages,
            cached_pages=gauges.cached_pages,
            total_pages=gauges.total_pages,
            steps=counters.steps,
            retractions=counters.retractions,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            output_tokens=counters.output_tokens,
            host_us=self._clock.busy_us(),
            loading=gauges.loading,
            transfers=gauges.transfers,
            host_free_pages=gauges.host_free_pages,
            host_total_pages=gauges.host_total_pages,
            host_cached_tokens=counters.host_cached_tokens,
            stored_pages=counters.stored_pages,
            loaded_pages=counters.loaded_pages,
            failed_transfers=counters.failed_transfers,
            retractions_to_host=counters.retractions_to_host,
            sessions_returned=counters.sessions_returned,
            drafted_tokens=self._speculation.drafted,
            accepted_tokens=self._speculation.accepted,
        )

    def _ledger(self) -> CacheLedger:
        ledger = self._scheduler.ledger()
        return CacheLedger(
            asked=self._ledger_asked,
            total=ledger.total,
            free=ledger.free,
            cached=ledger.cached,
            active=ledger.active,
            in_transfer=ledger.in_transfer,
            balanced=ledger.balanced,
            idle=not self._scheduler.has_work(),
            detail=ledger.detail,
            host_total=ledger.host_total,
            host_free=ledger.host_free,
            host_cached=ledger.host_cached,
            host_in_transfer=ledger.host_in_transfer,
        )
