# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The event loop: receive, plan, dispatch, commit, report. One thread, one step of overlap.

While the device runs step t-1, step t is planned and queued behind it; then the results of t-1 are
committed. So the device never waits for this loop, and this loop waits for one thing only. Where
there are guesses to verify, t-1 ends first: they follow its tokens.
Transfers to and from the host tier run beside all of it; the loop looks which of them ended.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from tokenspeed_sdk.contracts.grammar import GrammarError

from tokenspeed._scheduler import Rejection
from tokenspeed.engine.clock import HostClock, StepClock
from tokenspeed.engine.grammar import GrammarLoader, Grammars, fill_masks
from tokenspeed.engine.reports import Reporter
from tokenspeed.engine.speculation import Speculation
from tokenspeed.engine.watchdog import Activity, warn_of_hangs
from tokenspeed.messages import Rejected

if TYPE_CHECKING:
    from tokenspeed._scheduler import Scheduler, Updates
    from tokenspeed.engine.executor import Executor, InFlight
    from tokenspeed.engine.grammar import MaskedRows
    from tokenspeed.engine.mailbox import Mailbox
    from tokenspeed.engine.verify import PageTableVerifier
    from tokenspeed.messages import EngineInput, Sampling, Submit

log = logging.getLogger(__name__)

STALLED_POLL_MS = 1
"""How long to wait for a message when no step is in flight and none can be planned: transfers may
end meanwhile, and nobody wakes us up then."""


class EngineLoop:
    """Runs requests from a mailbox on an executor, as the scheduler decides."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        mailbox: Mailbox,
        verifier: PageTableVerifier | None = None,
        *,
        grammars: Grammars | None = None,
        speculation: Speculation | None = None,
        kernels: str = "",
        kv_events: bool = False,
    ) -> None:
        """Args:
        verifier: given, the executor must bring back the page tables of every step.
        grammars: None where no grammar backend is installed.
        speculation: None: nothing is guessed.
        kernels: which run in a step, for people.
        kv_events: whether the front hears what the prefix cache holds.
        """
        self._scheduler = scheduler
        self._executor = executor
        self._mailbox = mailbox
        self._verifier = verifier
        self._clock = HostClock()
        self._step_clock = StepClock()
        self._launching = Activity("launching its kernels")
        self._waiting = Activity("waiting for the device")
        self._deciding = Activity("following grammars and drafts")
        self._kernels = kernels
        self._speculation = speculation or Speculation(None, 0, 0)
        self._reporter = Reporter(scheduler, self._clock, self._speculation, kv_events=kv_events)
        self._grammars = grammars or Grammars(GrammarLoader(_no_backend))
        self._sampling: dict[int, Sampling] = {}
        self._stopping = False

    def run(self) -> None:
        """Until the front says stop; then in-flight work ends and nothing more is started."""
        activities = (self._launching, self._waiting, self._deciding)
        with warn_of_hangs(activities, self._kernels):
            self._run()

    def _run(self) -> None:
        previous: InFlight | None = None
        stalled = False
        while not self._stopping:
            self._receive(previous, stalled)
            self._acknowledge()
            self._submit_waiting()
            if previous is not None and (previous.drafts or self._speculation.waits):
                self._commit(previous)
                self._report(self._follow())
                previous = None
            current, masked = self._dispatch(known=previous is None)
            if previous is not None:
                self._commit(previous)
            updates = self._follow()
            if masked:
                current = self._sample_masked(current, masked)
            stalled = current is None and previous is None
            self._report(updates)
            previous = current
        if previous is not None:
            with self._waiting:
                self._executor.wait(previous)

    def _receive(self, previous: InFlight | None, stalled: bool) -> None:
        if previous is not None:
            timeout = 0
        elif self._grammars.waits:
            timeout = STALLED_POLL_MS
        elif not self._scheduler.has_work():
            self._check_idle()
            timeout = None
        else:
            timeout = STALLED_POLL_MS if stalled else 0
        with self._clock:
            messages = self._mailbox.receive(timeout)
        for message in messages:
            self._apply(message)

    def _apply(self, message: EngineInput) -> None:
        for grammar in message.new_grammars:
            self._grammars.hold(grammar)
        for submit in message.submits:
            if submit.grammar:
                self._grammars.wait_for(submit)
                self._reporter.waits(submit.request)
            else:
                self._submit(submit)
        for number in message.old_grammars:
            self._grammars.drop(number)
        for request in message.aborts:
            self._grammars.forget_waiting(request)
            if not self._scheduler.abort(request):
                self._reporter.left(request)
        if message.reset_cache:
            self._scheduler.reset_prefix_cache()
        if message.ask_ledger:
            self._reporter.ask_ledger(message.ask_ledger)
        self._stopping |= message.stop

    def _submit_waiting(self) -> None:
        """Those whose grammars were loaded meanwhile."""
        for submit, grammar in self._grammars.take_ready():
            if isinstance(grammar, str):
                self._reporter.fail(submit.request, f"its grammar cannot be loaded: {grammar}")
            elif self._submit(submit):
                self._grammars.begin(submit, grammar)

    def _submit(self, submit: Submit) -> bool:
        """Whether the scheduler took it."""
        result = self._scheduler.submit(
            submit.request,
            np.frombuffer(submit.tokens, np.int32),
            max_new_tokens=submit.max_new_tokens,
            stop_ids=np.asarray(submit.stop_ids, np.int32),
            namespace=submit.namespace,
            priority=submit.priority,
            deadline_ms=submit.deadline_ms,
            now_ms=now_ms(),
        )
        if result.rejection == Rejection.ACCEPTED:
            self._sampling[submit.request] = submit.sampling
            self._speculation.begin(submit)
            self._reporter.received(submit.request)
            return True
        reason = Rejection(result.rejection).name.lower()
        self._reporter.reject(Rejected(submit.request, reason, result.needed, result.available))
        return False

    def _acknowledge(self) -> None:
        for ended in self._executor.ended_transfers():
            self._scheduler.ack(ended.transfer, ended.ok)

    def _dispatch(self, *, known: bool) -> tuple[InFlight | None, MaskedRows]:
        """A step, if there is one; without its sampling where rows are to be masked before.

        ``known``: no step is in flight.
        """
        if not self._scheduler.has_work():
            return None, []
        if known:
            with self._deciding:
                self._speculation.propose(self._scheduler)
        buffers = self._executor.next_buffers()
        plan = self._scheduler.plan(now_ms(), buffers.scheduler)
        self._executor.start_transfers(plan)  # also of a plan without rows, which is no step
        if self._verifier is not None:
            self._verifier.expect(plan, buffers.host)
        if plan.num_rows == 0:
            return None, []
        self._reporter.planned(plan, buffers.host)
        self._speculation.planned(plan, buffers.host)
        self._step_clock.launching()
        masked = self._grammars.masked(plan, buffers)
        with self._launching:
            step = self._executor.dispatch(
                plan, self._sampling, self._scheduler.tokens, masked=bool(masked)
            )
        return step, masked

    def _follow(self) -> Updates:
        """What the last commits changed, told to those who follow tokens."""
        updates = self._scheduler.take_updates()
        with self._deciding:
            self._grammars.advance(updates)
            self._speculation.advance(updates, self._grammars)
        return updates

    def _sample_masked(self, step: InFlight | None, masked: MaskedRows) -> InFlight:
        """The rest of a step, now that the tokens before it are known."""
        assert step is not None
        with self._deciding:
            masks = fill_masks(masked, step.buffers)
        with self._launching:
            return self._executor.sample_masked(step, masks)

    def _commit(self, step: InFlight) -> None:
        with self._clock, self._waiting:
            self._executor.wait(step)
        elapsed_us = self._step_clock.ended()
        self._reporter.ended(step.plan, step.drafts, elapsed_us)
        if self._verifier is not None:
            self._verifier.check(step.plan, step.page_tables)
        if step.wanted or step.wishes:
            self._reporter.found(step.logprobs, [wish.result() for wish in step.wishes])
        self._scheduler.commit_sampled(step.plan.step, step.results, elapsed_us)
        for request, state, event in self._scheduler.take_rejected_events():
            log.error("request %s in state %s refused event %s", request, state, event)

    def _report(self, updates: Updates) -> None:
        for request, reason in self._grammars.end(updates):
            self._reporter.explain(request, reason)
        output = self._reporter.collect(updates)
        if output is not None:
            self._mailbox.send(output)
        for request in self._reporter.take_finished():
            self._sampling.pop(request, None)

    def _check_idle(self) -> None:
        """An idle engine owns no page but the prefix tree's; anything else is our fault."""
        ledger = self._scheduler.ledger()
        in_transfer = ledger.in_transfer or ledger.host_in_transfer
        if not ledger.balanced or ledger.active or in_transfer:
            raise RuntimeError(f"the page ledger does not balance while idle: {ledger.detail}")


def _no_backend(name: str) -> NoReturn:
    raise GrammarError(f"there is no grammar backend {name!r} here")


def now_ms() -> int:
    """Milliseconds of the clock that deadlines are given in."""
    return time.monotonic_ns() // 1_000_000
