# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The host tier's memory: pages of a slab, byte for byte, in memory that the device copies to.

    pool  [host pages + 1][ page_bytes ]     page 0 is never owned, as in the slab

Allocators of such memory round up to a power of two. So the pool is made of blocks just below one:
a pool of 33 GB must not take 64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from tokenspeed_sdk.contracts.platform import Device

BLOCK_BYTES = 1 << 28
LAYOUT = 1
"""The page layout that the bytes of a pool have."""


class HostPool:
    """Host memory for copies of a slab's pages."""

    layout = LAYOUT

    def __init__(
        self, device: Device, pages: int, page_bytes: int, *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        """``pages`` are usable ones. MemoryError: the host does not have so much."""
        self.pages = pages
        self.page_bytes = page_bytes
        self.bytes = (pages + 1) * page_bytes
        self.block_pages = max(1, block_bytes // page_bytes)
        self._blocks = [
            self._block(device, min(self.block_pages, pages + 1 - first))
            for first in range(0, pages + 1, self.block_pages)
        ]

    def rows(self, first: int, count: int) -> torch.Tensor:
        """uint8 [count, page_bytes]: pages [first, first + count), which lie in one block."""
        block, start = divmod(first, self.block_pages)
        rows = self._blocks[block][start : start + count]
        if len(rows) != count:
            raise IndexError(f"host pages [{first}, {first + count}) do not lie in one block")
        return rows

    def _block(self, device: Device, pages: int) -> torch.Tensor:
        try:
            return device.host_buffer((pages, self.page_bytes), "uint8")
        except RuntimeError as error:  # how torch says that memory cannot be pinned
            raise MemoryError(
                f"{self.bytes} bytes of host memory for {self.pages} pages: {error}"
            ) from error
