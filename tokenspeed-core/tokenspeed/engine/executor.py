# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The executor: turns a plan into device work, and device results into what the scheduler commits.

    plan(t) -> ring[t % 3] (host) --copy--> device inputs -> deltas -> forward -> sample -> ring (host)

Nothing here waits for the device, except ``collect``, which waits for one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenspeed_sdk.modeling.batch import CacheView, ForwardBatch

from tokenspeed._scheduler import Plan, RowFlag
from tokenspeed.engine.buffers import DeviceInputs, Limits, StepArrays, StepBuffers, StepLayout
from tokenspeed.engine.sampling import Sampler, SamplingTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed_sdk.contracts.model import Model
    from tokenspeed_sdk.contracts.platform import Device, Event
    from tokenspeed_sdk.modeling.context import BuildContext

    from tokenspeed.cache.slab import LayerCache
    from tokenspeed.messages import Sampling

RING = 3
"""One step runs, one is queued behind it, one is being planned."""


@dataclass(frozen=True)
class StepShape:
    """Host-side facts of a step that the device work is built from."""

    rows: int
    decode_rows: int
    tokens: int
    emits: int
    deltas: tuple[int, ...]
    max_query_len: int
    max_kv_len: int


@dataclass(frozen=True)
class InFlight:
    """A dispatched step: what was planned, and the event behind its work."""

    plan: Plan
    buffers: StepBuffers
    emits: np.ndarray  # bool[rows]
    event: Event


@dataclass(frozen=True)
class StepResults:
    """What ``Scheduler.commit`` takes: per row the number of tokens, the tokens, and failure."""

    num_tokens: np.ndarray  # int32[rows]
    tokens: np.ndarray  # int32[rows, 1]
    failed: np.ndarray  # uint8[rows]


class Executor:
    """Runs steps of one model on one device, in the order in which they are dispatched."""

    def __init__(
        self,
        model: Model,
        device: Device,
        context: BuildContext,
        caches: Sequence[LayerCache],
        limits: Limits,
        vocab_size: int,
    ) -> None:
        layout = StepLayout(limits)
        self._model = model
        self._stream = device.stream()
        self._ring = [StepBuffers(device, layout, limits) for _ in range(RING)]
        self._inputs = DeviceInputs(device, layout)
        self._sampler = Sampler(context, vocab_size)
        self._sampling = SamplingTable(limits.sequences + 2)
        slots = limits.sequences + 2
        self._last_token = device.allocate((slots,), "int64")
        self._slot_epoch = device.allocate((slots,), "int32")
        self._page_tables = [
            device.allocate((slots, limits.max_pages), "int32") for _ in range(limits.groups)
        ]
        self._caches = tuple(
            CacheView(cache.keys, cache.values, table)
            for cache, table in zip(caches, self._page_tables, strict=True)
        )
        self._dispatched = 0

    def next_buffers(self) -> StepBuffers:
        """The buffers that the next plan is written into; free, since its last step is committed."""
        return self._ring[self._dispatched % RING]

    def dispatch(self, plan: Plan, requests: dict[int, Sampling]) -> InFlight:
        """Queue a planned step; the plan lies in ``next_buffers()``.

        Args:
            requests: sampling parameters by request id, at least of all new tenants.
        """
        buffers = self.next_buffers()
        shape, emits = self._complete(plan, buffers, requests)
        self._stream.run(lambda: self._run(buffers, shape))
        self._dispatched += 1
        return InFlight(plan, buffers, emits, self._stream.record())

    def collect(self, step: InFlight) -> StepResults:
        """Wait for a step and read its tokens. Raises what its device work raised."""
        step.event.wait()
        rows = step.plan.num_rows
        sampled = step.buffers.sampled.numpy()[: step.plan.num_emits]
        tokens = np.zeros((rows, 1), np.int32)
        tokens[step.emits, 0] = sampled
        return StepResults(
            num_tokens=step.emits.astype(np.int32),
            tokens=tokens,
            failed=(tokens[:, 0] < 0).astype(np.uint8),
        )

    def close(self) -> None:
        """Wait for queued work and release the stream."""
        self._stream.close()

    def _complete(
        self, plan: Plan, buffers: StepBuffers, requests: dict[int, Sampling]
    ) -> tuple[StepShape, np.ndarray]:
        """Add what the executor knows to the arrays that the scheduler wrote."""
        host, rows = buffers.host, plan.num_rows
        flags, slots = host["row_flags"][:rows], host["row_slot"][:rows]
        starts, kv_len = host["row_query_start"][: rows + 1], host["row_kv_len"][:rows]
        query_len = np.diff(starts)
        host["token_slot"][: plan.num_tokens] = np.repeat(slots, query_len)

        for row in np.flatnonzero(flags & RowFlag.NEW_TENANT):
            request = int(host["row_request"][row])
            self._sampling.install(int(slots[row]), requests[request])

        emits = (flags & RowFlag.EMITS) != 0
        count = plan.num_emits
        host["emit_token"][:count] = starts[1:][emits] - 1
        host["emit_slot"][:count] = slots[emits]
        host["emit_position"][:count] = kv_len[emits]
        self._sampling.gather(slots[emits], host)
        shape = StepShape(
            rows=rows,
            decode_rows=plan.num_decode_rows,
            tokens=plan.num_tokens,
            emits=count,
            deltas=tuple(plan.num_deltas),
            max_query_len=int(query_len.max()),
            max_kv_len=int(kv_len.max()),
        )
        return shape, emits

    @torch.inference_mode()
    def _run(self, buffers: StepBuffers, shape: StepShape) -> None:
        """The device work of one step; only launches."""
        inputs = self._inputs.upload(buffers)
        self._apply_deltas(inputs, shape)
        batch = self._batch(inputs, shape)
        hidden = self._model.forward(batch)
        if not shape.emits:
            return
        count = shape.emits
        logits = self._model.logits(self._sampler.gather_rows(hidden, inputs.emit_token[:count]))
        tokens = self._sampler.sample(logits, inputs, count)
        self._last_token[inputs.emit_slot[:count]] = tokens
        buffers.sampled[:count].copy_(tokens, non_blocking=True)

    def _apply_deltas(self, inputs: StepArrays, shape: StepShape) -> None:
        """Bring the resident page tables up to date, entry by entry.

        An entry of an earlier tenant of its slot is dropped: its epoch is behind the slot's.
        """
        for group, count in enumerate(shape.deltas):
            if not count:
                continue
            slot = inputs.delta_slot[group, :count].long()
            epoch = inputs.delta_epoch[group, :count]
            current = epoch >= self._slot_epoch[slot]
            self._slot_epoch.scatter_reduce_(0, slot, epoch, "amax")
            target = torch.where(current, slot, 0)  # slot 0 is nobody's
            index = inputs.delta_index[group, :count].long()
            self._page_tables[group][target, index] = inputs.delta_page[group, :count]

    def _batch(self, inputs: StepArrays, shape: StepShape) -> ForwardBatch:
        token_ids = inputs.token_ids[: shape.tokens].long()
        decode = shape.decode_rows
        if decode:  # a decode row's token was sampled in the step before and never left the device
            token_ids[:decode] = self._last_token[inputs.row_slot[:decode]]
        return ForwardBatch(
            token_ids=token_ids,
            positions=inputs.positions[: shape.tokens],
            token_slot=inputs.token_slot[: shape.tokens],
            row_slot=inputs.row_slot[: shape.rows],
            query_start=inputs.row_query_start[: shape.rows + 1],
            kv_len=inputs.row_kv_len[: shape.rows],
            num_decode_rows=decode,
            max_query_len=shape.max_query_len,
            max_kv_len=shape.max_kv_len,
            caches=self._caches,
        )
