# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a device reaches without our kernels: reading memory, a matrix product, attention.

Through torch, so that the figures hold for any device that torch knows. Each is the median of some
passes behind each other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from tokenspeed_sdk.contracts.platform import HOST_MEMORY
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.platform import Device

PASSES, MEASUREMENTS = 5, 5
READ_BYTES, HOST_READ_BYTES = 8 << 30, 64 << 20
MATRIX, HOST_MATRIX = 8192, 512
FAST = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
"""torch's attention kernels that a device may have; SDPBackend.MATH runs everywhere."""


class DeviceRates:
    """Measures one device.

    Args:
        dtype: of matrix products and attention, such as "bfloat16".
    """

    def __init__(self, device: Device, dtype: str) -> None:
        self._stream = device.stream()
        self._device = device.torch_device
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._host = HOST_MEMORY in device.capabilities.features

    def read_bytes_s(self) -> float:
        """Bytes per second of the sum of a few gigabytes."""
        size = HOST_READ_BYTES if self._host else READ_BYTES
        values = torch.empty(size // 4, device=self._device).uniform_()
        return size / self._seconds(values.sum)

    def matrix_flops_s(self, *, eight_bits: bool = False) -> float:
        """Operations per second of a large product of random matrices.

        ``eight_bits``: of e4m3 codes with one scale, where the device has such products.
        """
        size = HOST_MATRIX if self._host else MATRIX
        left, right = self._random(size, size), self._random(size, size)
        if not eight_bits or self._host:
            out = torch.empty_like(left)
            return 2 * size**3 / self._seconds(lambda: torch.mm(left, right, out=out))
        one = torch.ones((), device=self._device)
        codes = (left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t())
        return (
            2
            * size**3
            / self._seconds(lambda: torch._scaled_mm(*codes, one, one, out_dtype=self._dtype))
        )

    def attention_flops_s(self, tokens: int, heads: int, head_dim: int) -> float:
        """Operations per second of causal attention over a prompt, by torch's fastest kernel."""
        q, k, v = (self._random(1, heads, tokens, head_dim) for _ in range(3))

        def work() -> None:
            scaled_dot_product_attention(q, k, v, is_causal=True)

        seconds = [taken for backend in FAST if (taken := self._with(backend, work)) is not None]
        best = min(seconds, default=None) or self._with(SDPBackend.MATH, work)
        assert best is not None
        return 4 * heads * head_dim * tokens * (tokens + 1) / 2 / best

    def _with(self, backend: SDPBackend, work: Callable[[], None]) -> float | None:
        """Seconds with one of torch's attention kernels; None where it does not run."""
        with sdpa_kernel(backend):
            try:
                work()  # not on the stream: a queue may stop at an error
            except RuntimeError:
                return None
            return self._seconds(work)

    def _seconds(self, work: Callable[[], object]) -> float:
        """Median seconds of one call."""

        @torch.inference_mode()  # of this thread: the stream's own may run it
        def run() -> None:
            work()

        self._stream.run(run)
        taken = []
        for _ in range(MEASUREMENTS):
            self._stream.record().wait()
            start = time.perf_counter()
            for _ in range(PASSES):
                self._stream.run(run)
            self._stream.record().wait()
            taken.append((time.perf_counter() - start) / PASSES)
        return statistics.median(taken)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device).normal_()
