# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The platform on a GPU: the sdk's conformance suite, and what is particular to CUDA."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE
from tokenspeed_sdk.contracts.probe import Accept
from tokenspeed_sdk.testing import platform_conformance

from tokenspeed_nvidia.device import CudaDevice
from tokenspeed_nvidia.platform import NvidiaPlatform

pytestmark = pytest.mark.gpu

LONG = 200_000_000
"""Cycles of a kernel that spins for about 0.1 s."""


test_platform = platform_conformance(NvidiaPlatform)


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return NvidiaPlatform().open(0)  # type: ignore[return-value]


def test_a_gpu_that_torch_sees_is_accepted(device: CudaDevice) -> None:
    assert isinstance(NvidiaPlatform().probe(), Accept)


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


def test_memory_is_zero_for_every_stream(device: CudaDevice) -> None:
    """Also for one that does not wait for what the default stream has left to do."""
    used = torch.full((1 << 20,), 7, device=device.torch_device)
    found, stream = device.host_buffer((1 << 20,), "int64"), device.stream()
    torch.cuda.synchronize()
    place = used.data_ptr()
    del used
    torch.cuda._sleep(5 * LONG)
    memory = device.allocate((1 << 20,), "int64")
    assert memory.data_ptr() == place, "not the memory that holds sevens"

    def work() -> None:
        found.copy_(memory, non_blocking=True)

    stream.run(work)
    stream.close()
    assert not found.any()


def test_too_much_inside_a_step_says_how_much(device: CudaDevice) -> None:
    stream = device.stream()

    def work() -> None:
        torch.empty(1 << 40, device=device.torch_device)

    with pytest.raises(MemoryError, match=r"needed [\d.]+ GiB, available \d+ bytes$"):
        stream.run(work)
    stream.close()


def test_host_buffers_are_pinned(device: CudaDevice) -> None:
    assert device.host_buffer((5, 7), "int32").is_pinned()


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
