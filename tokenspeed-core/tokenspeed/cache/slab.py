# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The device slab: one allocation of equal-byte pages, seen per layer as keys and values.

    slab  [pages + 1][ page_bytes ]          page 0 is the null page, never owned
    page  [layers of the group][key, value][kv_heads][page_size][head_dim]

A page keeps all layers of its group together, so that moving a page is one copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenspeed_sdk.contracts.model import CacheGroup
    from tokenspeed_sdk.contracts.platform import Device

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}
LAYOUT = 1
"""Number of the page layout above; whoever moves pages to other memory checks it."""


@dataclass(frozen=True)
class LayerCache:
    """Keys and values per layer of one group, each [pages + 1, kv_heads, page_size, head_dim]."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


def page_bytes(group: CacheGroup, page_size: int, dtype: str) -> int:
    """Bytes of one page: all layers of the group, ``page_size`` tokens."""
    return page_size * group.bytes_per_token(ITEMSIZE[dtype])


class Slab:
    """KV memory of one engine rank.

    Attributes:
        rows: uint8 [pages + 1, page_bytes], the pages as bytes.
    """

    layout = LAYOUT

    def __init__(
        self, device: Device, groups: tuple[CacheGroup, ...], page_size: int, pages: int, dtype: str
    ) -> None:
        sizes = {page_bytes(group, page_size, dtype) for group in groups}
        if len(sizes) != 1:
            raise ValueError(f"cache groups must have pages of equal bytes, got {sorted(sizes)}")
        self.page_size = page_size
        self.pages = pages
        self.page_bytes = sizes.pop()
        self.bytes = (pages + 1) * self.page_bytes
        self._memory = device.allocate((pages + 1, self.page_bytes // ITEMSIZE[dtype]), dtype)
        self.rows = self._memory.view(torch.uint8)

    def layers(self, group: CacheGroup) -> LayerCache:
        """The slab as the layers of ``group`` see it."""
        shape = (-1, len(group.layers), 2, group.kv_heads, self.page_size, group.head_dim)
        view = self._memory.view(shape)
        count = range(len(group.layers))
        return LayerCache(
            keys=tuple(view[:, layer, 0] for layer in count),
            values=tuple(view[:, layer, 1] for layer in count),
        )

    def copy_pages(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Launch the copies of (source, target) pages, in order, on the current stream.

        One launch a page needs no memory of its own, and a step has few of them.
        """
        for source, target in pairs:
            self.rows[target].copy_(self.rows[source], non_blocking=True)
