# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Memory for packed weights: one behind the other, in large blocks of huge pages."""

from __future__ import annotations

import threading
from functools import cache

import torch

from tokenspeed_cpu import huge_pages

BLOCK_FLOATS = 16 << 20
"""64 MiB: what a model leaves unused of its last block is never touched, so it costs no memory."""

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
                return huge_pages.zeros((rounded,), torch.float32)[:floats]
            if self._used + rounded > self._block.numel():
                self._block = huge_pages.zeros((BLOCK_FLOATS,), torch.float32)
                self._used = 0
            start = self._used
            self._used += rounded
            return self._block[start : start + floats]


@cache
def arena() -> Arena:
    """The arena of this process."""
    return Arena()
