# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Memory for packed weights in huge pages.

A decode step reads every weight once. In pages of 4 KiB that walk misses the translation cache at
each page; weights are therefore laid one behind the other in large blocks that ask for huge pages.
"""

from __future__ import annotations

import mmap
import threading
from functools import cache

import torch

BLOCK_FLOATS = 16 << 20
"""64 MiB: what a model leaves unused of its last block is never touched, so it costs no memory."""

HUGE = 2 << 20
LINE_FLOATS = 16


class Arena:
    """Hands out float32 memory, 64-byte aligned, block by block.

    A block lives as long as any tensor in it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._block = torch.empty(0)
        self._used = 0

    def take(self, floats: int) -> torch.Tensor:
        """[floats] float32, zeroed."""
        with self._lock:
            rounded = -(-floats // LINE_FLOATS) * LINE_FLOATS
            if rounded > BLOCK_FLOATS // 4:
                return _block(rounded)[:floats]
            if self._used + rounded > self._block.numel():
                self._block, self._used = _block(BLOCK_FLOATS), 0
            start = self._used
            self._used += rounded
            return self._block[start : start + floats]


@cache
def arena() -> Arena:
    """The arena of this process."""
    return Arena()


def _block(floats: int) -> torch.Tensor:
    """Fresh zeroed memory at a 2 MiB boundary. MemoryError says how much was asked for."""
    size = floats * 4
    try:
        memory = mmap.mmap(-1, size + HUGE)
    except OSError as error:
        raise MemoryError(f"no {size >> 20} MiB for packed weights: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.float32)
    start = -whole.data_ptr() % HUGE // 4
    return whole[start : start + floats]
