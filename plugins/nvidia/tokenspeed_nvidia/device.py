# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One opened GPU: memory, streams, events and captured graphs, on top of torch.cuda."""

# Parts of torch.cuda are not annotated.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE, Capabilities, MemoryReport, Stream

from tokenspeed_nvidia.nvml import driver_version


class CudaEvent:
    """A point in a stream."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def done(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        """Block without the GIL. RuntimeError is what the work before it ran into."""
        self._event.synchronize()


class CudaStream:
    """An ordered queue of the GPU: work is called now and only launches."""

    def __init__(self, device: torch.device) -> None:
        self.raw = torch.cuda.Stream(device)
        self._device = device

    def run(self, work: Callable[[], None]) -> None:
        try:
            with self.raw:  # a tenth of what torch.cuda.stream() costs
                work()
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(self._device, error) from error

    def record(self) -> CudaEvent:
        event = torch.cuda.Event()
        event.record(self.raw)
        return CudaEvent(event)

    def close(self) -> None:
        self.raw.synchronize()


class CudaGraph:
    """Captured launches."""

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self.replay: Callable[[], None] = graph.replay


class CudaDevice:
    """A GPU for one engine rank."""

    def __init__(self, index: int) -> None:
        _require_cuda(index)
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(self._device)
        self._capabilities = Capabilities(
            device_type="cuda",
            arch=f"sm_{properties.major}{properties.minor}",
            dtypes=("bfloat16", "float16", "float32"),
            features=frozenset({GRAPH_CAPTURE}),
            units=properties.multi_processor_count,
            product=properties.name,
            toolchain=f"cuda {torch.version.cuda}, driver {driver_version()}",
        )
        self._pool: Any = None  # keeps the graphs' memory when the last of them is gone

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def torch_device(self) -> str:
        return str(self._device)

    def memory(self) -> MemoryReport:
        free, total = torch.cuda.mem_get_info(self._device)
        return MemoryReport(
            total=total,
            free=free + _cached(self._device),
            used=torch.cuda.memory_allocated(self._device),
            peak=torch.cuda.max_memory_allocated(self._device),
        )

    def allocate(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        with memory_errors(self._device, _bytes(shape, dtype)):
            memory = torch.zeros(shape, dtype=getattr(torch, dtype), device=self._device)
        # Steps run on a stream of their own, which waits neither for these zeros nor for weights
        # that are still being filled.
        torch.cuda.current_stream(self._device).synchronize()
        return memory

    def host_buffer(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return torch.zeros(shape, dtype=getattr(torch, dtype), pin_memory=True)

    def stream(self) -> CudaStream:
        return CudaStream(self._device)

    def capture(self, work: Callable[[], None], stream: Stream) -> CudaGraph:
        """Run ``work`` once on ``stream``, so that kernels are compiled and scratch exists, then
        capture it.

        All graphs of the device share one memory pool: replay them on one stream only, and let
        what outlives a replay lie in memory allocated outside.
        """
        if not isinstance(stream, CudaStream):
            raise TypeError(f"capture needs a stream of this device, got {type(stream).__name__}")
        stream.run(work)
        stream.raw.synchronize()
        if self._pool is None:
            self._pool = torch.cuda.MemPool()
        graph = torch.cuda.CUDAGraph()
        with (
            memory_errors(self._device),
            torch.cuda.graph(
                graph, pool=self._pool.id, stream=stream.raw, capture_error_mode="thread_local"
            ),
        ):
            work()
        return CudaGraph(graph)


@contextmanager
def memory_errors(device: torch.device, needed: int | None = None) -> Iterator[None]:
    """Turn torch's out-of-memory error into MemoryError with needed and available bytes."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(device, error, needed) from error


def _out_of_memory(
    device: torch.device, error: torch.OutOfMemoryError, needed: int | None = None
) -> MemoryError:
    free = torch.cuda.mem_get_info(device)[0] + _cached(device)
    wanted = f"{needed} bytes" if needed is not None else _asked(error)
    return MemoryError(f"{device} is out of memory: needed {wanted}, available {free} bytes")


def _asked(error: torch.OutOfMemoryError) -> str:
    """What torch says that it tried to allocate."""
    found = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
    return found[1] if found else "more"


def _cached(device: torch.device) -> int:
    """Bytes that torch holds and has not handed out."""
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return int(torch.Size(shape).numel()) * int(getattr(torch, dtype).itemsize)


def _require_cuda(index: int) -> None:
    if torch.version.cuda is None:
        raise RuntimeError(
            f"torch {torch.__version__} is built without CUDA; install a torch wheel with CUDA"
        )
    count = torch.cuda.device_count()
    if index >= count:
        raise RuntimeError(
            f"GPU {index} does not exist: torch {torch.__version__} (CUDA {torch.version.cuda}) "
            f"sees {count}; compare nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
