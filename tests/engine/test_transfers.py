# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The mover alone: pages come back byte for byte, and what fails is told and hurts no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest
import torch
from moves import HOST_PAGES, PAGES, PATIENCE, HookedDevice, drain, start, tiers
from tokenspeed.cache.host_pool import HostPool
from tokenspeed.cache.transfers import PageMover
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.testing.platform.devices import WrappedDevice


@pytest.mark.parametrize("order", ["runs", "scattered"])
def test_pages_come_back_byte_for_byte(delaying: Device, order: str) -> None:
    """Stored by several transfers, wiped, and loaded into other pages of the slab."""
    rng = np.random.default_rng(1)
    pages, host = np.arange(1, 19), np.arange(3, 21)
    if order == "scattered":
        pages, host = rng.permutation(pages), rng.permutation(host)
    back = rng.permutation(np.arange(1, PAGES + 1))[:18]
    slab, pool, mover = tiers(delaying)
    before = slab.rows.clone()
    with closing(mover):
        numbers = np.repeat(np.array([7, 4, 1 << 63], np.uint64), 6)
        start(mover, stores=(numbers, pages, host))
        assert {ended.transfer for ended in drain(mover, 3)} == {7, 4, 1 << 63}
        slab.rows.zero_()
        start(mover, loads=(numbers, host, back))
        assert all(ended.ok for ended in drain(mover, 3))
        assert mover.ended() == []
    assert slab.rows[back].equal(before[pages])
    assert not slab.rows[np.setdiff1d(np.arange(PAGES + 1), back)].any()
    assert not pool.rows(0, 3).any()


def test_a_late_load_holds_up_no_store_and_no_caller(cpu: Device) -> None:
    gate = threading.Event()

    def hook(number: int) -> None:
        if number == 0:
            gate.wait(PATIENCE)

    slab, _, mover = tiers(cpu, HookedDevice(cpu, hook))
    with closing(mover):
        start(mover, loads=([1], [5], [5]))
        start(mover, stores=([2], [6], [6]))
        assert [ended.transfer for ended in drain(mover, 1)] == [2]
        assert mover.ended() == []
        assert slab.rows[5].any()
        gate.set()
        assert [(ended.transfer, ended.ok) for ended in drain(mover, 1)] == [(1, True)]
    assert not slab.rows[5].any()


@pytest.mark.parametrize("failing", [{0}, {1, 3}, {0, 1, 2, 3, 4}])
def test_what_fails_is_told_and_what_does_not_is_moved(
    cpu: Device, failing: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    def hook(number: int) -> None:
        if number in failing:
            raise RuntimeError("this copy fails on purpose")

    slab, pool, mover = tiers(cpu, HookedDevice(cpu, hook))
    with closing(mover):
        for transfer in range(5):
            start(mover, stores=([transfer] * 2, [1 + transfer, 9], [3 + transfer, 20 + transfer]))
        ended = drain(mover, 5)
    assert {one.transfer: one.ok for one in ended} == {n: n not in failing for n in range(5)}
    for transfer in range(5):
        moved = pool.rows(3 + transfer, 1)[0].equal(slab.rows[1 + transfer])
        assert moved == (transfer not in failing)
    assert len(caplog.records) == len(failing)
    assert "on purpose" in caplog.text


class _BreaksMidway(WrappedDevice):
    """Queues the copies of a transfer one by one, as a GPU does; cannot queue the second."""

    def __init__(self, device: Device, gate: threading.Event) -> None:
        super().__init__(device)
        self._gate = gate

    def stream(self) -> _BreaksMidway:
        self._inner = self._device.stream()
        return self

    def run(self, work: Callable[[], None]) -> None:
        self._inner.run(lambda: self._gate.wait(PATIENCE) and None)  # the first one takes long
        raise RuntimeError("the second cannot be queued")

    def record(self) -> object:
        return self._inner.record()

    def close(self) -> None:
        self._inner.close()


def test_a_transfer_that_breaks_midway_ends_when_its_last_copy_has(cpu: Device) -> None:
    """Its pages are given to others as soon as it is said to have ended."""
    gate = threading.Event()
    _, _, mover = tiers(cpu, _BreaksMidway(cpu, gate))
    with closing(mover):
        start(mover, stores=([1, 1], [1, 3], [1, 3]))
        assert mover.ended() == []
        gate.set()
        assert [(ended.transfer, ended.ok) for ended in drain(mover, 1)] == [(1, False)]


def test_a_pool_is_made_of_blocks(cpu: Device) -> None:
    """So that none of them is rounded up to much more than was asked for."""
    sizes: list[tuple[int, ...]] = []

    class Counting(WrappedDevice):
        def host_buffer(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
            sizes.append(shape)
            return super().host_buffer(shape, dtype)

    pool = HostPool(Counting(cpu), 11, 64, block_bytes=5 * 64 + 63)
    assert sizes == [(5, 64), (5, 64), (2, 64)]
    assert pool.bytes == 12 * 64
    assert len(pool.rows(5, 5)) == 5
    for first, count in ((4, 2), (10, 3), (12, 1)):
        with pytest.raises(IndexError):
            pool.rows(first, count)


def test_memory_that_cannot_be_pinned_is_said_with_its_size(cpu: Device) -> None:
    class Full(WrappedDevice):
        def host_buffer(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
            raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(MemoryError, match="768 bytes of host memory for 11 pages: CUDA error"):
        HostPool(Full(cpu), 11, 64)


def test_pages_of_another_layout_are_refused(cpu: Device) -> None:
    slab, pool, _ = tiers(cpu)
    with pytest.raises(ValueError, match="cannot hold those of"):
        PageMover(cpu, slab, HostPool(cpu, HOST_PAGES, slab.page_bytes + 4))
    pool.layout += 1
    with pytest.raises(ValueError, match="layout"):
        PageMover(cpu, slab, pool)


def test_page_copies_are_in_order_and_whole(cpu: Device) -> None:
    slab, _, _ = tiers(cpu)
    before = slab.rows.clone()
    slab.copy_pages([(1, 2), (3, 4), (2, 5)])
    assert slab.rows[[2, 4, 5]].equal(before[[1, 3, 1]])
    rest = [page for page in range(PAGES + 1) if page not in (2, 4, 5)]
    assert slab.rows[rest].equal(before[rest])
