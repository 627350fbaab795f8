# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Checks of a device's memory: zeroed, of the right kind, refused with numbers, and counted."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable

import torch

from tokenspeed_sdk.contracts.platform import MemoryReport
from tokenspeed_sdk.testing.platform.subject import Subject, raised_by, work_of

_SHAPES: tuple[tuple[int, ...], ...] = ((), (0, 4), (3,), (5, 7, 2))
_INTEGERS = ("int32", "int64", "uint8")
_ELEMENTS = (1 << 10, 1 << 20)
_ROUNDS = 3
_HELD = 64 << 20


def check_allocate(subject: Subject) -> None:
    """Shape, dtype and device are as asked for, all is zero, and the memory is the tensor's own."""
    _check_tensors("allocate", subject.device.allocate, subject, subject.device.torch_device)


def check_host_buffer(subject: Subject) -> None:
    """As ``allocate``, in host memory; the device copies from it and to it."""
    device = subject.device
    _check_tensors("host_buffer", device.host_buffer, subject, "cpu")
    for count in _ELEMENTS * _ROUNDS:
        buffer = device.host_buffer((count,), "int64")
        assert not buffer.any(), "host_buffer is not zeroed where memory was used before"
        buffer.fill_(7)
        del buffer
    there, source = device.allocate((1000,), "int64"), device.host_buffer((1000,), "int64")
    source.copy_(torch.arange(1000))
    with subject.stream() as stream:
        stream.run(work_of(there.copy_, source, non_blocking=True))
        found = subject.read(stream, there)
    assert torch.equal(found, torch.arange(1000)), "copies from or to a host_buffer are wrong"


def _check_tensors(
    what: str,
    make: Callable[[tuple[int, ...], str], torch.Tensor],
    subject: Subject,
    place: str,
) -> None:
    for dtype in (*subject.device.capabilities.dtypes, *_INTEGERS):
        for shape in _SHAPES:
            made, other = make(shape, dtype), make(shape, dtype)
            call = f"{what}({shape}, {dtype!r})"
            assert tuple(made.shape) == shape, f"{call} has the shape {tuple(made.shape)}"
            assert made.dtype == getattr(torch, dtype), f"{call} has the dtype {made.dtype}"
            assert made.device == torch.device(place), f"{call} lies on {made.device}, not {place}"
            assert made.is_contiguous(), f"{call} is not contiguous"
            assert not made.cpu().any(), f"{call} is not zeroed"
            made.fill_(1)
            assert not other.cpu().any(), f"{call} shares memory with a tensor made before"


def check_zeroed(subject: Subject) -> None:
    """Memory that was used before is zero, also for a stream that does not wait for the others."""
    device = subject.device
    for count in _ELEMENTS * _ROUNDS:
        used = device.allocate((count,), "int64")
        used.fill_(7)
        assert bool(used[-1].cpu() == 7)  # and so all that was queued has ended
        del used
        if subject.launches:
            subject.load()  # on the stream that is current here: zeroing may queue behind it
        again = device.allocate((count,), "int64")
        with subject.stream() as stream:
            found = subject.read(stream, again)
        assert not found.any(), (
            "a stream sees memory of allocate() that is not zero: the zeros must be there when "
            "allocate() returns"
        )


def check_too_much(subject: Subject) -> None:
    """More than there is: a MemoryError that says needed and available bytes, and ends nothing."""
    device = subject.device
    needed = device.memory().total + 1
    error = raised_by(lambda: device.allocate((needed,), "uint8"))
    assert error is not None, f"allocate gives {needed} bytes of a device that has one less"
    assert isinstance(error, MemoryError), f"allocate raises {error!r}, not a MemoryError"
    numbers = set(re.findall(r"(?<![\w:])\d+", str(error)))  # not those of uint8 and cuda:0
    assert str(needed) in numbers, f"the MemoryError does not say {needed} bytes: {error}"
    assert numbers != {str(needed)}, f"the MemoryError does not say what is available: {error}"
    assert not device.allocate((16,), "uint8").cpu().any()


def check_memory(subject: Subject) -> None:
    """The numbers agree, and ``used`` follows an allocation on a device that reports it."""
    device = subject.device
    gc.collect()  # tensors of others must not go away meanwhile
    before = _report(subject)
    held = device.allocate((_HELD,), "uint8")
    during = _report(subject)
    assert during.total == before.total, f"total changes from {before.total} to {during.total}"
    if not (before.used or during.used):
        return
    grown = during.used - before.used
    assert _HELD <= grown < 2 * _HELD, f"used grows by {grown} with a tensor of {_HELD} bytes"
    del held
    gc.collect()
    after = _report(subject)
    assert after.used < during.used, f"used stays {after.used} when the tensor is gone"
    assert after.peak >= during.used, f"peak is {after.peak} after {during.used} were used"


def _report(subject: Subject) -> MemoryReport:
    found = subject.device.memory()
    assert isinstance(found, MemoryReport), f"memory() returns {found!r}, no MemoryReport"
    assert 0 <= found.free <= found.total > 0, f"free is not within total: {found}"
    assert 0 <= found.used <= found.peak, f"used is not within peak: {found}"
    return found
