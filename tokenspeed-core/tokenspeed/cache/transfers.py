# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The mover: pages between slab and host pool, beside the steps.

    plan -> start() -> store stream: slab -> pool, load stream: pool -> slab -> ended() -> ack

It waits for no step and no step waits for it: a store reads pages whose step is committed, a load
writes pages that nobody else touches before its ack. The two directions have a stream each, so that
a request that waits for its load does not queue behind the stores of others.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch
    from tokenspeed_sdk.contracts.platform import Device, Event, Stream

    from tokenspeed._scheduler import Plan
    from tokenspeed.cache.host_pool import HostPool
    from tokenspeed.cache.slab import Slab

log = logging.getLogger(__name__)

Copy: TypeAlias = Callable[[np.ndarray, np.ndarray], None]
"""Launches the copies of pages: sources, targets."""


@dataclass(frozen=True)
class EndedTransfer:
    """For ``Scheduler.ack``. Not ok: what its target pages hold is unknown."""

    transfer: int
    ok: bool


class PageMover:
    """Carries out the stores and loads of plans. Nothing here blocks but ``close``."""

    def __init__(self, device: Device, slab: Slab, pool: HostPool) -> None:
        """ValueError: the pool's pages are not the slab's."""
        ours, theirs = (slab.layout, slab.page_bytes), (pool.layout, pool.page_bytes)
        if ours != theirs:
            raise ValueError(f"pages of layout and bytes {theirs} cannot hold those of {ours}")
        self._slab = slab
        self._pool = pool
        self._stores = _Lane(device.stream(), self._store)
        self._loads = _Lane(device.stream(), self._load)

    def start(self, plan: Plan, host: Mapping[str, np.ndarray]) -> None:
        """Queue what the plan that was written into ``host`` moves; ``host`` is free afterwards."""
        for lane, kind, count in (
            (self._loads, "load", plan.num_loads),
            (self._stores, "store", plan.num_stores),
        ):
            if count:
                lane.start(*(host[f"{kind}_{what}"][:count] for what in _COLUMNS))

    def ended(self) -> list[EndedTransfer]:
        """Transfers that ended since the last call."""
        return [*self._loads.ended(), *self._stores.ended()]

    def close(self) -> None:
        """Wait for queued copies and release the streams."""
        self._loads.close()
        self._stores.close()

    def _store(self, sources: np.ndarray, targets: np.ndarray) -> None:
        for device, host in self._runs(sources, targets):
            host.copy_(device, non_blocking=True)

    def _load(self, sources: np.ndarray, targets: np.ndarray) -> None:
        for device, host in self._runs(targets, sources):
            device.copy_(host, non_blocking=True)

    def _runs(
        self, device: np.ndarray, host: np.ndarray
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The pages' bytes; pages that follow each other on both sides are one run."""
        block = host // self._pool.block_pages
        breaks = (np.diff(device) != 1) | (np.diff(host) != 1) | (np.diff(block) != 0)
        starts = [0, *(np.flatnonzero(breaks) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], len(host)], strict=True):
            count, first = stop - start, int(device[start])
            yield self._slab.rows[first : first + count], self._pool.rows(int(host[start]), count)


_COLUMNS = ("transfer", "source", "target")


@dataclass(frozen=True)
class _InFlight:
    transfer: int
    event: Event
    error: Exception | None  # why not all of its copies were launched

    def succeeded(self) -> bool:
        """Once the event is done: whether all copies were made."""
        try:
            self.event.wait()
            if self.error is not None:
                raise self.error
        except Exception as error:
            log.warning("transfer %d of KV pages failed: %s", self.transfer, error)
            log.debug("transfer %d", self.transfer, exc_info=True)
            return False
        return True


class _Lane:
    """One direction: transfers that end in the order in which they were started."""

    def __init__(self, stream: Stream, copy: Copy) -> None:
        self._stream = stream
        self._copy = copy
        self._in_flight: deque[_InFlight] = deque()

    def start(self, transfers: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> None:
        for transfer in np.unique(transfers):
            pages = transfers == transfer  # indexing with it copies: the arrays are used again
            work = partial(self._copy, sources[pages], targets[pages])
            error = None
            try:
                self._stream.run(work)
            except Exception as raised:  # what was launched before goes on: hence the event
                error = raised
            self._in_flight.append(_InFlight(int(transfer), self._stream.record(), error))

    def ended(self) -> Iterator[EndedTransfer]:
        while self._in_flight and _over(self._in_flight[0].event):
            first = self._in_flight.popleft()
            yield EndedTransfer(first.transfer, first.succeeded())

    def close(self) -> None:
        self._stream.close()


def _over(event: Event) -> bool:
    try:
        return event.done()
    except Exception:  # a device that is broken says so here; waiting for the event tells more
        return True
