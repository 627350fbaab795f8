# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Pages that move between a slab and a host pool, without a scheduler."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tokenspeed.cache.host_pool import HostPool
from tokenspeed.cache.slab import Slab
from tokenspeed.cache.transfers import EndedTransfer, PageMover
from tokenspeed_sdk.contracts.model import CacheGroup
from tokenspeed_sdk.contracts.platform import Device, Event, Stream
from tokenspeed_sdk.testing.platform.devices import WrappedDevice

GROUP = CacheGroup("full", layers=(0, 1), kv_heads=2, head_dim=8)
PAGES, HOST_PAGES, BLOCK = 24, 32, 5
PATIENCE = 20.0

Pages = Sequence[int] | np.ndarray
Moves = tuple[Pages, Pages, Pages]
"""Transfer, source and target of each page."""


def tiers(device: Device, mover_device: Device | None = None) -> tuple[Slab, HostPool, PageMover]:
    """A slab of random bytes, a pool of blocks of five pages, and a mover between them."""
    slab = Slab(device, (GROUP,), page_size=4, pages=PAGES, dtype="float32")
    slab.rows.copy_(torch.randint(0, 256, slab.rows.shape, dtype=torch.uint8))
    pool = HostPool(device, HOST_PAGES, slab.page_bytes, block_bytes=BLOCK * slab.page_bytes + 1)
    return slab, pool, PageMover(mover_device or device, slab, pool)


def start(mover: PageMover, *, stores: Moves | None = None, loads: Moves | None = None) -> None:
    """As the loop does with a plan, whose arrays are overwritten right afterwards."""
    host: dict[str, np.ndarray] = {}
    counts = {}
    for kind, moves in (("store", stores), ("load", loads)):
        counts[f"num_{kind}s"] = 0 if moves is None else len(moves[0])
        kinds = (("transfer", np.uint64), ("source", np.int32), ("target", np.int32))
        for (what, dtype), pages in zip(kinds, moves or ([], [], []), strict=True):
            stale = np.full(9, 1, dtype)  # an earlier plan's, behind this one's
            host[f"{kind}_{what}"] = np.concatenate([np.asarray(pages, dtype), stale])
    plan: Any = SimpleNamespace(**counts)
    mover.start(plan, host)
    for array in host.values():
        array[:] = 0


def drain(mover: PageMover, number: int) -> list[EndedTransfer]:
    """Poll until ``number`` transfers have ended."""
    ended: list[EndedTransfer] = []
    deadline = time.monotonic() + PATIENCE
    while len(ended) < number:
        assert time.monotonic() < deadline, f"{len(ended)} of {number} transfers ended: {ended}"
        ended += mover.ended()
        time.sleep(0.0005)
    return ended


Hook = Callable[[int], None]


class HookedDevice(WrappedDevice):
    """Its streams call a hook in front of each piece of work, where the work runs.

    The hook gets the number of the work, in the order in which all of them were queued.
    """

    def __init__(self, device: Device, hook: Hook) -> None:
        super().__init__(device)
        self._hook = hook
        self._numbers = count()

    def stream(self) -> Stream:
        return _HookedStream(self._device.stream(), self._hook, self._numbers)


class _HookedStream:
    def __init__(self, stream: Stream, hook: Hook, numbers: Iterator[int]) -> None:
        self._stream = stream
        self._hook = hook
        self._numbers = numbers

    def run(self, work: Callable[[], None]) -> None:
        number = next(self._numbers)

        def hooked() -> None:
            self._hook(number)
            work()

        self._stream.run(hooked)

    def record(self) -> Event:
        return self._stream.record()

    def close(self) -> None:
        self._stream.close()


def unreliable(seed: int, *, failing: float, longest: float) -> Hook:
    """A hook that takes up to ``longest`` seconds, and raises in a share of all calls."""

    def hook(number: int) -> None:
        luck = random.Random(1000 * seed + number)
        time.sleep(luck.random() * longest)
        if luck.random() < failing:
            raise RuntimeError("this copy fails on purpose")

    return hook
