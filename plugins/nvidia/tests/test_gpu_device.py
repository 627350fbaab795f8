# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The platform on a GPU: memory, streams, events, graphs, errors."""

from __future__ import annotations

import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE
from tokenspeed_sdk.contracts.probe import Accept

from tokenspeed_nvidia.device import CudaDevice
from tokenspeed_nvidia.platform import NvidiaPlatform

pytestmark = pytest.mark.gpu

LONG = 200_000_000
"""Cycles of a kernel that spins for about 0.1 s."""


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return NvidiaPlatform().open(0)  # type: ignore[return-value]


def test_probe_accepts_in_a_few_milliseconds() -> None:
    NvidiaPlatform().probe()
    begin = time.perf_counter()
    verdict = NvidiaPlatform().probe()
    spent = time.perf_counter() - begin
    print(f"probe {spent * 1e3:.1f} ms: {verdict}")
    assert isinstance(verdict, Accept)
    assert spent < 0.5


def test_capabilities_say_what_the_gpu_is(device: CudaDevice) -> None:
    major, minor = torch.cuda.get_device_capability(0)
    found = device.capabilities
    assert (found.device_type, found.arch) == ("cuda", f"sm_{major}{minor}")
    assert found.dtypes[0] == "bfloat16"
    assert GRAPH_CAPTURE in found.features
    assert device.torch_device == "cuda:0"


def test_memory_falls_by_what_is_allocated(device: CudaDevice) -> None:
    """Other processes may use the same GPU meanwhile: one undisturbed try in ten is enough."""
    size, seen = 1 << 30, []
    for _ in range(10):
        before = device.memory()
        held = device.allocate((size,), "uint8")
        after = device.memory()
        assert before.total == after.total
        assert not held.any()
        seen.append(before.free - after.free)
        del held
    assert min(abs(fall - size) for fall in seen) < size // 16


def test_too_much_is_a_memory_error_with_both_numbers(device: CudaDevice) -> None:
    needed = device.memory().total + 1
    with pytest.raises(MemoryError, match=rf"needed {needed} bytes, available \d+ bytes"):
        device.allocate((needed,), "uint8")


def test_too_much_inside_a_step_says_how_much(device: CudaDevice) -> None:
    stream = device.stream()

    def work() -> None:
        torch.empty(1 << 40, device=device.torch_device)

    with pytest.raises(MemoryError, match=r"needed [\d.]+ GiB, available \d+ bytes$"):
        stream.run(work)
    stream.close()


def test_host_buffers_are_pinned_and_zero(device: CudaDevice) -> None:
    buffer = device.host_buffer((5, 7), "int32")
    assert buffer.is_pinned()
    assert not buffer.any()


def test_work_is_queued_and_events_do_not_block(device: CudaDevice) -> None:
    stream = device.stream()
    source, target = (
        device.host_buffer((1 << 20,), "int64"),
        device.host_buffer((1 << 20,), "int64"),
    )
    there = device.allocate((1 << 20,), "int64")
    source += 3
    torch.cuda.synchronize()

    def work() -> None:
        torch.cuda._sleep(5 * LONG)
        there.copy_(source, non_blocking=True)
        target.copy_(there * 2, non_blocking=True)

    stream.run(work)  # loads the kernels
    stream.record().wait()
    stream.run(work)
    event = stream.record()
    assert not event.done()
    event.wait()
    assert event.done()
    assert bool((target == 6).all())
    stream.close()


def test_waiting_leaves_the_gil(device: CudaDevice) -> None:
    stream = device.stream()
    stream.run(lambda: torch.cuda._sleep(4 * LONG))
    event = stream.record()
    steps, stop = 0, threading.Event()

    def count() -> None:
        nonlocal steps
        while not stop.is_set():
            steps += 1

    counter = threading.Thread(target=count)
    counter.start()
    begin = steps
    event.wait()
    during = steps - begin
    stop.set()
    counter.join()
    assert during > 10_000


def test_a_graph_replays_on_its_memory(device: CudaDevice) -> None:
    stream = device.stream()
    value, total = device.allocate((1000,), "float32"), device.allocate((1000,), "float32")
    value += 1
    torch.cuda.synchronize()
    graphs = [device.capture(lambda n=n: total.add_(value * n), stream) for n in (1, 10)]
    total.zero_()
    torch.cuda.synchronize()
    stream.run(lambda: [graph.replay() for graph in (*graphs, graphs[0])] and None)
    stream.record().wait()
    assert bool((total == 12).all())
    stream.close()


def test_graphs_can_be_captured_after_all_others_are_gone(device: CudaDevice) -> None:
    """Start-up captures one to measure, drops it, and captures those that serve."""
    stream = device.stream()
    value = device.allocate((1000,), "float32")
    for _ in range(3):
        graph = device.capture(lambda: value.add_(torch.ones_like(value)), stream)
        value.zero_()
        torch.cuda.synchronize()
        stream.run(graph.replay)
        stream.record().wait()
        assert bool((value == 1).all())
        del graph
    stream.close()


def test_capture_wants_a_stream_of_this_device(device: CudaDevice) -> None:
    with pytest.raises(TypeError, match="needs a stream of this device"):
        device.capture(lambda: None, object())  # type: ignore[arg-type]
