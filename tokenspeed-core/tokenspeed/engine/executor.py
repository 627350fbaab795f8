# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The executor: turns a plan into device work, and device results into what the scheduler commits.

    plan(t) -> ring[t % 3] --copy--> device inputs -> deltas -> forward -> sample --copy--> ring

Nothing here waits for the device, except ``wait``, which waits for one step. Pages that the plan
copies are copied in front, on the same stream; those that it moves to or from the host tier go
beside, on streams of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed._scheduler import Plan, RowFlag
from tokenspeed.engine.buffers import Limits, StepBuffers, StepLayout
from tokenspeed.engine.device_step import DeviceStep, StepShape
from tokenspeed.engine.graphs import DecodeGraphs, bucket_sizes
from tokenspeed.engine.sampling import SamplingTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed_sdk.contracts.platform import Device, Event

    from tokenspeed.cache.slab import Slab
    from tokenspeed.cache.transfers import EndedTransfer, PageMover
    from tokenspeed.messages import Sampling

_NEW_TENANT, _EMITS = int(RowFlag.NEW_TENANT), int(RowFlag.EMITS)  # numpy is slow with enums
RING = 3
"""One step runs, one is queued behind it, one is being planned."""


@dataclass(frozen=True)
class InFlight:
    """A dispatched step: what was planned, and the event behind its work."""

    plan: Plan
    buffers: StepBuffers
    emits: np.ndarray  # bool[rows]
    event: Event

    @property
    def page_tables(self) -> list[np.ndarray]:
        """The device's tables as the step left them, once it has been waited for."""
        return [table.numpy() for table in self.buffers.page_tables]


@dataclass(frozen=True)
class StepResults:
    """What ``Scheduler.commit`` takes: per row the number of tokens, the tokens, and failure."""

    num_tokens: np.ndarray  # int32[rows]
    tokens: np.ndarray  # int32[rows, 1]
    failed: np.ndarray  # uint8[rows]


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
        sizes = bucket_sizes(limits.sequences) if graphs else []
        self._step = step
        self._slab = slab
        self._mover = mover
        self._stream = device.stream()
        self._ring = [
            StepBuffers(device, layout, limits, page_tables=page_tables) for _ in range(RING)
        ]
        self._sampling = SamplingTable(limits.sequences + 2)
        self._graphs = DecodeGraphs(step, device, self._stream, limits, sizes)
        self._dispatched = 0

    def next_buffers(self) -> StepBuffers:
        """The buffers that the next plan is written into; their last step is committed."""
        return self._ring[self._dispatched % RING]

    def start_transfers(self, plan: Plan) -> None:
        """Start what the plan in ``next_buffers()`` moves to and from the host tier."""
        if self._mover is not None:
            self._mover.start(plan, self.next_buffers().host)

    def ended_transfers(self) -> list[EndedTransfer]:
        """Those that ended since the last call. Never blocks."""
        return [] if self._mover is None else self._mover.ended()

    def dispatch(self, plan: Plan, requests: Mapping[int, Sampling]) -> InFlight:
        """Queue a planned step; the plan lies in ``next_buffers()``, which is another afterwards.

        Args:
            requests: sampling parameters by request id, at least of all new tenants.
        """
        buffers = self.next_buffers()
        emits = self._complete(plan, buffers, requests)
        shape = _shape(plan, buffers)
        bucket = self._graphs.find(shape)
        if plan.num_copies:
            self._stream.run(partial(self._slab.copy_pages, buffers.copies(plan)))
        if bucket is None:
            self._stream.run(lambda: self._launch(buffers, shape))
        else:
            self._graphs.pad(buffers, shape.rows, bucket)
            self._stream.run(lambda: self._replay(buffers, shape, bucket))
        self._dispatched += 1
        return InFlight(plan, buffers, emits, self._stream.record())

    def wait(self, step: InFlight) -> None:
        """Wait for a step, without the GIL. Raises what its device work raised."""
        step.event.wait()

    def collect(self, step: InFlight) -> StepResults:
        """Read the tokens of a step that has been waited for."""
        rows = step.plan.num_rows
        tokens = np.zeros((rows, 1), np.int32)
        tokens[step.emits, 0] = step.buffers.sampled.numpy()[: step.plan.num_emits]
        return StepResults(
            num_tokens=step.emits.astype(np.int32),
            tokens=tokens,
            failed=(tokens[:, 0] < 0).astype(np.uint8),
        )

    def close(self) -> None:
        """Wait for queued work and release the streams."""
        self._stream.close()
        if self._mover is not None:
            self._mover.close()

    def _launch(self, buffers: StepBuffers, shape: StepShape) -> None:
        self._step.upload(buffers)
        self._step.run(shape, buffers.arrays)
        self._step.download(buffers, shape.emits)

    def _replay(self, buffers: StepBuffers, shape: StepShape, bucket: int) -> None:
        self._step.upload(buffers)
        self._graphs.replay(bucket)
        self._step.download(buffers, shape.emits)

    def _complete(
        self, plan: Plan, buffers: StepBuffers, requests: Mapping[int, Sampling]
    ) -> np.ndarray:
        """Add what the executor knows to the arrays that the scheduler wrote; which rows emit."""
        host, rows, count = buffers.host, plan.num_rows, plan.num_emits
        flags, slots = host["row_flags"][:rows], host["row_slot"][:rows]
        starts = host["row_query_start"][: rows + 1]
        host["token_slot"][: plan.num_tokens] = np.repeat(slots, np.diff(starts))
        host["delta_count"][:] = plan.num_deltas

        for row in np.flatnonzero(flags & _NEW_TENANT):
            request = int(host["row_request"][row])
            self._sampling.install(int(slots[row]), requests[request])

        emits: np.ndarray = (flags & _EMITS) != 0
        host["emit_token"][:count] = starts[1:][emits] - 1
        host["emit_slot"][:count] = slots[emits]
        host["emit_position"][:count] = host["row_kv_len"][:rows][emits]
        self._sampling.gather(slots[emits], host)
        return emits


def _shape(plan: Plan, buffers: StepBuffers) -> StepShape:
    host, rows = buffers.host, plan.num_rows
    return StepShape(
        rows=rows,
        decode_rows=plan.num_decode_rows,
        tokens=plan.num_tokens,
        emits=plan.num_emits,
        has_deltas=any(plan.num_deltas),
        max_query_len=int(np.diff(host["row_query_start"][: rows + 1]).max()),
        max_kv_len=int(host["row_kv_len"][:rows].max()),
    )
