# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The published scheduler, called through its Python package as an engine has to call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plane import PAGE_SIZE, Facts, Level, Sizes
from tokenspeed_scheduler import (
    AttnKind,
    Cache,
    CacheGroupConfig,
    ExecutionEvent,
    ForwardEvent,
    RequestSpec,
    Scheduler,
    SchedulerConfig,
)

GROUP = "full"


class WheelPlane:
    """``plane.ControlPlane`` over ``tokenspeed_scheduler``. It counts page 0 in every pool."""

    def __init__(self, sizes: Sizes) -> None:
        config = SchedulerConfig()
        pages = sizes.pages + 1
        config.cache_groups = [CacheGroupConfig(GROUP, PAGE_SIZE, pages, AttnKind.Full)]
        config.num_device_pages = pages
        config.num_host_pages = sizes.host_pages + 1
        config.num_snapshot_pages = 1  # none: nothing is suspended here
        config.disable_l2_cache = sizes.host_pages == 0
        config.max_batch_size = sizes.rows
        config.max_scheduled_tokens = sizes.step_tokens
        config.prefix_granularity = PAGE_SIZE
        config.enable_mixed_prefill_decode = True
        self._scheduler = Scheduler(config)
        self._host_pages = sizes.host_pages
        self._sampled = np.full(sizes.rows, 7, np.int32)  # what the device would have sampled
        self._tokens_left: dict[str, int] = {}
        self._reading: tuple[Any, ...] = ()
        self._request_ids: list[str] = []
        self._emits: list[bool] = []
        self._lengths: list[int] = []
        self._transfers: list[tuple[Any, ...]] = []

    def submit(self, request: int, tokens: NDArray[np.int32], max_new_tokens: int) -> None:
        """As a list: that is faster than handing over the array.

        It is not told ``max_new_tokens``, for then it takes the pages of the whole answer at once,
        and no decode step would need any.
        """
        spec = RequestSpec()
        spec.request_id = str(request)
        spec.tokens = tokens.tolist()
        self._scheduler.submit_requests([spec])
        self._tokens_left[spec.request_id] = max_new_tokens

    def plan(self) -> None:
        plan = self._scheduler.next_execution_plan()
        (batch,) = plan.forward
        request_ids = self._request_ids = batch.request_ids
        lengths, extends = batch.input_lengths, batch.num_extends()
        self._emits = [True] * len(request_ids)
        prefixes: list[int] = []
        if extends:
            prefixes = batch.extend_prefix_lens
            for row, prompt in enumerate(batch.prefill_lengths[:extends]):
                self._emits[row] = prefixes[row] + lengths[row] == prompt
        self._lengths = lengths
        self._reading = (
            *(batch.request_pool_indices, prefixes, batch.input_ids if extends else []),
            *(batch.block_tables_arrays(), plan.pages_to_zero_arrays()),
            *(plan.pages_to_copy_arrays(), plan.aborts),
        )
        self._transfers = [
            (op.op_ids, op.src_pages, op.dst_pages, op.group_ids) for op in plan.cache
        ]

    def commit(self) -> None:
        """Its engine keeps the answers itself, so there is nothing to read back."""
        event = ExecutionEvent()
        sampled = self._sampled[: len(self._request_ids)].tolist()
        for request, emits, token in zip(self._request_ids, self._emits, sampled, strict=True):
            result = ForwardEvent.ExtendResult()
            result.request_id = request
            result.tokens = [token] if emits else []
            event.add_event(result)
        self._scheduler.advance(event)

    def gauges(self) -> tuple[int, int]:
        return self._scheduler.available_lcm_blocks(), self._scheduler.active_lcm_blocks()

    def settle(self) -> None:
        """Its engine decides when a request ends."""
        for request, emits in zip(self._request_ids, self._emits, strict=True):
            self._tokens_left[request] -= emits
            if self._tokens_left[request] == 0:
                self._send(ForwardEvent.Finish, request_id=request)
        for op_ids, *_ in self._transfers:
            for op_id in op_ids:
                self._send(Cache.WriteBackDoneEvent, op_id=op_id)

    def abort(self, request: int) -> None:
        self._send(ForwardEvent.Abort, request_id=str(request))

    def facts(self) -> Facts:
        return Facts(
            rows=len(self._lengths),
            query_tokens=sum(self._lengths),
            stored_pages=sum(len(p) for _, pages, *_ in self._transfers for p in pages),
        )

    def level(self) -> Level:
        scheduler = self._scheduler
        return Level(
            running=scheduler.prefilling_size() + scheduler.decoding_size(),
            waiting=scheduler.waiting_size(),
            held_pages=scheduler.active_lcm_blocks(),
            empty_pages=scheduler.empty_lcm_blocks(),
            empty_host_pages=self._host_pages - scheduler.host_pool_cached_blocks(),
        )

    def _send(self, make: Callable[[], Any], **fields: object) -> None:
        message, event = make(), ExecutionEvent()
        for name, value in fields.items():
            setattr(message, name, value)
        event.add_event(message)
        self._scheduler.advance(event)
