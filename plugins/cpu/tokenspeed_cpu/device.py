# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The opened CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.platform import (
    HOST_MEMORY,
    Capabilities,
    Graph,
    MemoryReport,
    Stream,
)

from tokenspeed_cpu import library, memory
from tokenspeed_cpu.stream import CpuStream

if TYPE_CHECKING:
    import torch

FEATURES = {
    "v4_vnni": ("avx2", "avx512", "avx512_vnni"),
    "v4": ("avx2", "avx512"),
    "v3": ("avx2",),
}


class CpuDevice:
    """All cores as one device. Work of a stream runs on a thread of that stream."""

    torch_device = "cpu"

    def __init__(self, threads: int) -> None:
        """Set how many threads kernels and torch use. LibraryError: no kernels for this CPU."""
        import torch

        library.set_threads(threads)
        torch.set_num_threads(threads)
        self._capabilities = Capabilities(
            device_type="cpu",
            arch=library.arch(),
            dtypes=("float32",),
            features=frozenset((HOST_MEMORY, *FEATURES.get(library.isa(), ()))),
            units=threads,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def memory(self) -> MemoryReport:
        """Memory of the machine or of the cgroup, whichever is less."""
        return memory.report()

    def allocate(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """A zeroed tensor. MemoryError says needed and available bytes."""
        import torch

        from tokenspeed_cpu import huge_pages

        kind: torch.dtype = getattr(torch, dtype)
        needed = math.prod(shape) * kind.itemsize
        available = self.memory().free
        if needed > available:
            raise MemoryError(
                f"{shape} of {dtype} needs {needed} bytes of memory; {available} are available"
            )
        if needed >= huge_pages.HUGE:
            return huge_pages.zeros(shape, kind)
        return torch.zeros(shape, dtype=kind)

    def host_buffer(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """A zeroed tensor: host memory is device memory here."""
        return self.allocate(shape, dtype)

    def stream(self) -> Stream:
        return CpuStream()

    def capture(self, work: Callable[[], None], stream: Stream) -> Graph:
        raise RuntimeError("the CPU captures no graphs; ask capabilities.features before")
