# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The platform kit finds faults of devices: a sound one passes, each fault fails its check.

The sound one computes on the CPU, on a thread of each stream; a fault puts one method differently.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from tokenspeed_sdk.contracts.platform import Capabilities, Device, MemoryReport
from tokenspeed_sdk.testing import CPU, FakePlatform
from tokenspeed_sdk.testing.platform.devices import ReplayingDevice, WrappedDevice
from tokenspeed_sdk.testing.platform.fake_device import FakeDevice
from tokenspeed_sdk.testing.platform.subject import LOAD_SECONDS, Subject
from tokenspeed_sdk.testing.platform.suite import DEVICE_CHECKS

pytestmark = pytest.mark.rule("R19")

Work = Callable[[], object]


class SoundEvent:
    def __init__(self, reached: Future[BaseException | None]) -> None:
        self.reached = reached

    def done(self) -> bool:
        return self.reached.done()

    def wait(self) -> None:
        if (error := self.reached.result()) is not None:
            raise error


class SoundStream:
    event: type[SoundEvent] = SoundEvent
    threads = 1

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(self.threads)
        self.error: BaseException | None = None

    def run(self, work: Work) -> None:
        self.pool.submit(self.work, work)

    def work(self, work: Work) -> None:
        try:
            work()
        except Exception as error:
            self.error = error

    def record(self) -> SoundEvent:
        return self.event(self.pool.submit(self.report))

    def report(self) -> BaseException | None:
        error, self.error = self.error, None
        return error

    def close(self) -> None:
        self.pool.shutdown()


class SoundDevice(WrappedDevice):
    """Counts what the tensors of ``allocate`` take."""

    streams: type[SoundStream] = SoundStream

    def __init__(self) -> None:
        super().__init__(FakeDevice(CPU))
        self.used = self.peak = 0

    def stream(self) -> Any:
        return self.streams()

    def memory(self) -> MemoryReport:
        return replace(super().memory(), used=self.used, peak=self.peak)

    def allocate(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        made = super().allocate(shape, dtype)
        self.count(made.nbytes)
        weakref.finalize(made, self.count, -made.nbytes)
        return made

    def count(self, more: int) -> None:
        self.used += more
        self.peak = max(self.peak, self.used)


class SoundPlatform(FakePlatform):
    """Has one device."""

    def open(self, index: int = 0) -> Any:
        if index:
            raise RuntimeError(f"there is one device, index 0; got {index}")
        return SoundDevice()


def capable(**wrong: Any) -> SoundDevice:
    """A device whose capabilities are wrong."""

    class Wrong(SoundDevice):
        @property
        def capabilities(self) -> Capabilities:
            return replace(CPU, **wrong)

    return Wrong()


def having(**methods: Callable[..., Any]) -> SoundDevice:
    """A device some of whose methods are others."""
    return type("Faulty", (SoundDevice,), methods)()


def streaming(**methods: Any) -> SoundDevice:
    """A device some of whose streams' methods are others."""
    return having(streams=type("Faulty", (SoundStream,), methods))


def waiting(**methods: Any) -> SoundDevice:
    """A device some of whose events' methods are others."""
    return streaming(event=type("Faulty", (SoundEvent,), methods))


def reporting(**wrong: int) -> SoundDevice:
    """A device that reports other memory than it has."""
    return having(memory=lambda self: replace(SoundDevice.memory(self), **wrong))


def allocating(change: Callable[[torch.Tensor], torch.Tensor], **only: Any) -> SoundDevice:
    """A device that hands out something else, of shapes and dtypes that are ``only``."""

    def allocate(self: SoundDevice, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        made = SoundDevice.allocate(self, shape, dtype)
        return change(made) if only in ({}, {"shape": shape}, {"dtype": dtype}) else made

    return having(allocate=allocate)


def refusing(error: Exception | None) -> SoundDevice:
    """A device that refuses too large a tensor in another way, or not at all."""

    def allocate(self: SoundDevice, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        with suppress(MemoryError):
            return SoundDevice.allocate(self, shape, dtype)
        if error is not None:
            raise error
        return torch.zeros(1)

    return having(allocate=allocate)


def capturing(change: Callable[[Any], object]) -> ReplayingDevice:
    """A device with graph capture, whose graphs replay otherwise."""

    class Wrong(ReplayingDevice):
        def capture(self, work: Any, stream: Any) -> Any:
            graph = super().capture(work, stream)
            return type("Graph", (), {"replay": lambda _: change(graph)})()

    return Wrong(SoundDevice())


def uninitialised(self: object, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    if len(shape) == 1 and torch.Size(shape).numel() > 100:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return FakeDevice(CPU).allocate(shape, dtype)


def wait_with_gil(event: SoundEvent) -> None:
    ctypes.PyDLL(None).usleep(int(LOAD_SECONDS * 1e6))  # a PyDLL keeps the GIL
    SoundEvent.wait(event)


def leave_a_thread(stream: SoundStream) -> None:
    SoundStream.close(stream)
    threading.Thread(target=time.sleep, args=(0.5,), name="left", daemon=True).start()


def first_shared(tensor: torch.Tensor, seen: dict[Any, torch.Tensor] = {}) -> torch.Tensor:  # noqa: B006
    return seen.setdefault((tensor.shape, tensor.dtype), tensor)


def run_at_once(stream: SoundStream, work: Work) -> None:
    stream.work(work)


def run_twice(stream: SoundStream, work: Work) -> None:
    for _ in range(2):
        SoundStream.run(stream, work)


def blocking_done(event: SoundEvent) -> bool:
    event.reached.result()
    return True


def stubborn_report(stream: SoundStream) -> BaseException | None:
    return stream.error


class OpenStream(SoundStream):
    def close(self) -> None:
        self.record().wait()


@dataclass(frozen=True)
class Fault:
    """A device with one fault, the check that must find it, and a pattern of what that says."""

    check: str
    says: str
    device: Callable[[], Device]


FAULTS = [
    Fault("capabilities", "device_type is 'cuda', but", lambda: capable(device_type="cuda")),
    Fault("capabilities", "arch is empty", lambda: capable(arch="")),
    Fault("capabilities", "dtypes are empty", lambda: capable(dtypes=())),
    Fault("capabilities", "dtypes repeat", lambda: capable(dtypes=("float32", "float32"))),
    Fault("capabilities", "'fp32', which is no dtype", lambda: capable(dtypes=("fp32",))),
    Fault("capabilities", "no tuple", lambda: capable(dtypes="float32")),
    Fault("capabilities", "no frozenset", lambda: capable(features={"host_memory"})),
    Fault("capabilities", "lack 'host_memory'", lambda: capable(features=frozenset())),
    Fault("capabilities", "units are 0", lambda: capable(units=0)),
    Fault("allocate", r"shape \(1,\)", lambda: allocating(lambda t: t.reshape(1), shape=())),
    Fault("allocate", "dtype torch.float64", lambda: allocating(lambda t: t.double())),
    Fault("allocate", "lies on meta", lambda: allocating(lambda t: t.to("meta"))),
    Fault("allocate", "not zeroed", lambda: allocating(lambda t: t + 1, dtype="uint8")),
    Fault("allocate", "shares memory", lambda: allocating(first_shared)),
    Fault(
        "allocate",
        "not contiguous",
        lambda: allocating(lambda t: t.mT.contiguous().mT, shape=(5, 7, 2)),
    ),
    Fault("zeroed", "is not zero", lambda: having(allocate=uninitialised)),
    Fault("host_buffer", "used before", lambda: having(host_buffer=uninitialised)),
    Fault(
        "host_buffer",
        "lies on meta",
        lambda: having(
            host_buffer=lambda self, shape, dtype: torch.zeros(
                shape, dtype=getattr(torch, dtype), device="meta"
            )
        ),
    ),
    Fault("too_much", "gives .* bytes of a device", lambda: refusing(None)),
    Fault("too_much", "not a MemoryError", lambda: refusing(RuntimeError("out of memory"))),
    Fault("too_much", "does not say", lambda: refusing(MemoryError("out of memory, 5 available"))),
    Fault(
        "too_much",
        "what is available",
        lambda: refusing(MemoryError(f"needed {(8 << 30) + 1} bytes on cuda:0 of uint8")),
    ),
    Fault("memory", "not within total", lambda: reporting(free=1 << 50)),
    Fault("memory", "not within peak", lambda: reporting(used=5, peak=4)),
    Fault("memory", "grows by 0", lambda: reporting(used=5, peak=10)),
    Fault("memory", "no MemoryReport", lambda: having(memory=lambda self: (1, 2))),
    Fault(
        "memory",
        "when the tensor is gone",
        lambda: having(count=lambda self, more: SoundDevice.count(self, max(more, 0))),
    ),
    Fault(
        "memory",
        r"peak is \d+ after",
        lambda: having(memory=lambda self: replace(SoundDevice.memory(self), peak=self.used)),
    ),
    Fault("at_once", "when the work has ended", lambda: streaming(run=run_at_once)),
    Fault("order", "out of order: ", lambda: streaming(threads=8)),
    Fault("order", "out of order: ", lambda: streaming(run=run_twice)),
    Fault("events", r"or done\(\) blocks", lambda: waiting(done=blocking_done)),
    Fault("events", r"before the work in front", lambda: waiting(done=lambda event: True)),
    Fault(
        "events",
        r"wait\(\) (returns before|has returned)",
        lambda: waiting(wait=lambda event: None),
    ),
    Fault("events", r"done\(\) is False after", lambda: waiting(done=lambda event: False)),
    Fault("waits_without_gil", "it holds the GIL", lambda: waiting(wait=wait_with_gil)),
    Fault("errors", "neither run", lambda: streaming(report=lambda stream: None)),
    Fault("errors", "on purpose", lambda: streaming(report=stubborn_report)),
    Fault(
        "two_streams",
        "waits for the work of another",
        lambda: having(stream=cache(lambda device: OpenStream())),
    ),
    Fault(
        "close",
        "does not wait",
        lambda: streaming(close=lambda stream: stream.pool.shutdown(wait=False)),
    ),
    Fault("close", "leaves threads behind: left", lambda: streaming(close=leave_a_thread)),
    Fault("capture", "but features lack", lambda: having(capture=lambda *_: None)),
    Fault("capture", "not a RuntimeError", lambda: having(capture=lambda device, work: None)),
    Fault("capture", "run again on the memory", lambda: capturing(lambda graph: None)),
    Fault(
        "capture",
        "run again on the memory",
        lambda: capturing(lambda graph: (graph.replay(), graph.replay())),
    ),
]


@pytest.mark.parametrize("check", DEVICE_CHECKS)
@pytest.mark.parametrize("capture", [False, True])
def test_a_sound_device_passes(check: str, capture: bool) -> None:
    subject = Subject(SoundPlatform)
    if capture:
        subject.device = ReplayingDevice(SoundDevice())
    DEVICE_CHECKS[check](subject)


@pytest.mark.parametrize("check", ["zeroed", "at_once", "order", "events", "close"])
def test_a_device_is_kept_busy_by_products(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a device with a queue of its own gets, on one that has none."""
    monkeypatch.setattr("tokenspeed_sdk.testing.platform.subject._MATRIX", 1024)
    subject = Subject(SoundPlatform)
    subject.launches = True
    DEVICE_CHECKS[check](subject)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.check}: {fault.says}")
def test_a_fault_is_found(fault: Fault) -> None:
    subject = Subject(SoundPlatform)
    subject.device = fault.device()
    with pytest.raises((AssertionError, ValueError), match=fault.says):
        DEVICE_CHECKS[fault.check](subject)


def test_every_check_has_a_fault() -> None:
    assert {fault.check for fault in FAULTS} | {"missing_index"} == set(DEVICE_CHECKS)
