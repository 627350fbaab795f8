# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The executor: turns a plan into device work; its results come back into the plan's buffers.

    plan(t) -> ring[t % 3] --copy--> device inputs -> deltas -> forward -> sample --copy--> ring

Nothing here waits for the device, except ``wait``, which waits for one step. Pages that the plan
copies are copied in front, on the same stream; those that it moves to or from the host tier go
beside, on streams of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tokenspeed._scheduler import Plan, PlanBuffers, RowFlag
from tokenspeed.engine.adjustments import History, TenantLoader, no_history
from tokenspeed.engine.buffers import Limits, StepBuffers, StepLayout
from tokenspeed.engine.device_step import DeviceStep, StepShape
from tokenspeed.engine.graphs import DecodeGraphs, StepKind, graph_sizes
from tokenspeed.engine.prompt_logprobs import PromptWish, make_wish
from tokenspeed.engine.sampling import SamplingTable
from tokenspeed.messages import TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenspeed_sdk.contracts.platform import Device, Event

    from tokenspeed.cache.slab import Slab
    from tokenspeed.cache.transfers import EndedTransfer, PageMover
    from tokenspeed.messages import Sampling

_NEW_TENANT = int(RowFlag.NEW_TENANT)  # numpy is slow with enums
RING = 3
"""One step runs, one is queued behind it, one is being planned."""


class Wanted(NamedTuple):
    """A row whose log-probabilities a step finds.

    Attributes:
        place, tokens: of those that it draws: the first among all of the step, and how many.
        entries: that are told of each.
    """

    request: int
    place: int
    tokens: int
    entries: int


@dataclass(frozen=True)
class InFlight:
    """A dispatched step: what was planned, and the event behind its work.

    Attributes:
        drafts: tokens that it verifies.
        event: None while the sampling of its rows is still to be dispatched.
        wanted: whose log-probabilities it finds.
        wishes: what it finds of prompts.
        download: queues the copy of all that it finds.
    """

    plan: Plan
    buffers: StepBuffers
    drafts: int
    event: Event | None
    wanted: list[Wanted]
    wishes: list[PromptWish]
    download: Callable[[], None]

    @property
    def results(self) -> PlanBuffers:
        """For ``Scheduler.commit_sampled``, once the step has been waited for."""
        return self.buffers.scheduler

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """What requests that asked are told of this step, once it has been waited for; also of
        tokens behind wrong guesses."""
        ids, values = np.hsplit(self.buffers.logprobs.numpy(), 2)
        return [
            TokenLogprobs(
                of.request, ids[at, : of.entries].tobytes(), values[at, : of.entries].tobytes()
            )
            for of in self.wanted
            for at in range(of.place, of.place + of.tokens)
        ]

    @property
    def page_tables(self) -> list[np.ndarray]:
        """The device's tables as the step left them, once it has been waited for."""
        return [table.numpy() for table in self.buffers.page_tables]


class Executor:
    """Runs steps on one device, in the order in which they are dispatched."""

    def __init__(
        self,
        step: DeviceStep,
        device: Device,
        limits: Limits,
        slab: Slab,
        mover: PageMover | None = None,
        *,
        graphs: bool = True,
        page_tables: bool = False,
    ) -> None:
        """Captures the decode graphs, unless ``graphs`` is False or the device has none.

        Args:
            mover: to and from the host tier; closed with the executor. None: there is no such tier.
            page_tables: whether every step brings the device's page tables back.
        """
        layout = StepLayout(limits)
        self._step = step
        self._slab = slab
        self._mover = mover
        self._stream = device.stream()
        self._ring = [
            StepBuffers(device, layout, limits, page_tables=page_tables) for _ in range(RING)
        ]
        self._sampling = SamplingTable(limits.sequences + 2)
        sizes = graph_sizes(limits) if graphs else {}
        self._graphs = DecodeGraphs(step, device, self._stream, limits, sizes)
        self._hidden: torch.Tensor | None = None  # of a step without its sampling; of the stream
        self._device = device
        self._asks_of_prompt = np.zeros(limits.sequences + 2, np.bool_)
        self._tenants = TenantLoader(device, step.adjustments, RING)
        self._dispatched = 0

    def next_buffers(self) -> StepBuffers:
        """The buffers that the next plan is written into; their last step is committed."""
        return self._ring[self._dispatched % RING]

    @property
    def counts_guesses(self) -> bool:
        """Whether requests with penalties may be guessed for."""
        return self._step.counts_guesses

    def start_transfers(self, plan: Plan) -> None:
        """Start what the plan in ``next_buffers()`` moves to and from the host tier."""
        if self._mover is not None:
            self._mover.start(plan, self.next_buffers().host)

    def ended_transfers(self) -> list[EndedTransfer]:
        """Those that ended since the last call. Never blocks."""
        return [] if self._mover is None else self._mover.ended()

    def dispatch(
        self,
        plan: Plan,
        requests: Mapping[int, Sampling],
        history: History = no_history,
        *,
        masked: bool = False,
    ) -> InFlight:
        """Queue a planned step; the plan lies in ``next_buffers()``, which is another afterwards.

        Args:
            requests: sampling parameters by request id, at least of all new tenants.
            history: of a request; asked of new tenants that have penalties.
            masked: leave the sampling out: ``sample_masked`` is called before the next dispatch.
        """
        buffers = self.next_buffers()
        drafts = buffers.drafts(plan)
        drafted = buffers.order_drafts(plan.num_decode_rows) if drafts and self._step.drafts else ()
        if plan.num_new_tenants:
            self._install(plan, buffers.host, requests, history)
        self._sampling.gather(buffers, plan.num_emits)
        wanted = self._wanted(plan, buffers)
        wishes = self._wishes(plan, buffers.host, requests, history)
        if plan.num_copies:
            self._stream.run(partial(self._slab.copy_pages, buffers.copies(plan)))
        guessed = plan.num_tokens if drafted else 0
        download = partial(self._step.download, buffers, logprobs=bool(wanted), guessed=guessed)
        kind = StepKind(verifies=drafts > 0, samples=not masked)
        prefills = plan.num_rows > plan.num_decode_rows
        bucket = None if prefills else self._graphs.find(kind, plan.num_tokens)
        if bucket is None:
            launch = self._launch_forward if masked else partial(self._launch, download)
            self._stream.run(partial(launch, buffers, _shape(plan, drafts, drafted), wishes))
        else:
            self._graphs.pad(kind, buffers, plan.num_tokens, bucket)
            self._stream.run(partial(self._replay, download, buffers, kind, bucket))
        self._dispatched += 1
        event = None if masked else self._stream.record()
        return InFlight(plan, buffers, drafts, event, wanted, wishes, download)

    def sample_masked(self, step: InFlight, masks: int) -> InFlight:
        """Queue the sampling of a step that was dispatched without.

        Args:
            masks: how many its buffers hold.
        """
        shape = _shape(step.plan, step.drafts)
        launch = partial(self._launch_sampling, step.download, step.buffers, shape, masks)
        self._stream.run(launch)
        return replace(step, event=self._stream.record())

    def wait(self, step: InFlight) -> None:
        """Wait for a step, without the GIL. Raises what its device work raised."""
        assert step.event is not None, "its sampling was never dispatched"
        step.event.wait()

    def close(self) -> None:
        """Wait for queued work and release the streams."""
        self._stream.close()
        if self._mover is not None:
            self._mover.close()

    def _launch(
        self,
        download: Callable[[], None],
        buffers: StepBuffers,
        shape: StepShape,
        wishes: list[PromptWish],
    ) -> None:
        self._step.upload(buffers)
        self._step.run(shape, buffers.arrays, wishes)
        download()

    def _replay(
        self, download: Callable[[], None], buffers: StepBuffers, kind: StepKind, bucket: int
    ) -> None:
        self._step.upload(buffers, decode=not kind.verifies)
        self._hidden = self._graphs.replay(kind, bucket)
        if kind.samples:
            download()

    def _wanted(self, plan: Plan, buffers: StepBuffers) -> list[Wanted]:
        """Whose log-probabilities the step finds. Nearly free where nobody asks."""
        host = buffers.host
        wanted = host["wanted"][: plan.num_emits]
        if not wanted.any():
            return []
        rows, places = buffers.emitting(plan)
        tokens = np.diff(places, append=plan.num_emits)
        columns = (host["row_request"][rows], places, tokens, wanted[places])
        rows_of_all = map(Wanted._make, zip(*(each.tolist() for each in columns), strict=True))
        return [row for row in rows_of_all if row.entries]

    def _wishes(
        self,
        plan: Plan,
        host: Mapping[str, np.ndarray],
        requests: Mapping[int, Sampling],
        history: History,
    ) -> list[PromptWish]:
        """What prefill rows tell of their prompts. Free where nobody on the device asks."""
        if not self._asks_of_prompt.any():
            return []
        wishes = []
        rows = range(plan.num_decode_rows, plan.num_rows)
        for row in (row for row in rows if self._asks_of_prompt[host["row_slot"][row]]):
            request = int(host["row_request"][row])
            at, behind = host["row_query_start"][row : row + 2].tolist()
            end = int(host["row_kv_len"][row])
            top = requests[request].prompt_logprobs
            computed = (end - (behind - at), end)
            wish = make_wish(self._device, request, at, computed, top, history(request))
            if wish is not None:
                wishes.append(wish)
        return wishes

    def _launch_forward(
        self, buffers: StepBuffers, shape: StepShape, wishes: list[PromptWish]
    ) -> None:
        self._step.upload(buffers)
        self._hidden = self._step.run_forward(shape, buffers.arrays, wishes)

    def _launch_sampling(
        self, download: Callable[[], None], buffers: StepBuffers, shape: StepShape, masks: int
    ) -> None:
        hidden, self._hidden = self._hidden, None
        assert hidden is not None
        self._step.run_sampling(shape, hidden, buffers, masks)
        download()

    def _install(
        self,
        plan: Plan,
        host: Mapping[str, np.ndarray],
        requests: Mapping[int, Sampling],
        history: History,
    ) -> None:
        """Take over the sampling parameters of slots that have a new tenant."""
        place = self._tenants.place(self._dispatched % RING)
        for row in np.flatnonzero(host["row_flags"][: plan.num_rows] & _NEW_TENANT):
            request, slot = int(host["row_request"][row]), int(host["row_slot"][row])
            self._sampling.install(slot, requests[request])
            self._asks_of_prompt[slot] = requests[request].prompt_logprobs >= 0
            load = place.stage(slot, requests[request], partial(history, request))
            if load is not None:
                self._stream.run(load)


def _shape(plan: Plan, drafts: int, drafted: tuple[int, ...] = ()) -> StepShape:
    return StepShape(
        verifies=drafts > 0,
        drafted=drafted,
        rows=plan.num_rows,
        decode_rows=plan.num_decode_rows,
        tokens=plan.num_tokens,
        emits=plan.num_emits,
        has_deltas=any(plan.num_deltas),
        max_query_len=plan.max_query_len,
        max_kv_len=plan.max_kv_len,
    )
