# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The device slab: one allocation of equal-byte pages, seen per layer as keys and values.

    slab  [pages + 1][ page_bytes ]          page 0 is the null page, never owned
    page  [layers of the group][key, value][kv_heads][page_size][head_dim]
          and behind them, in the same form, what a drafter with a model keeps of the same tokens

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
ALIGNMENT = 64
"""Bytes at which the parts of a page begin, where it has several."""
LAYOUT = 1
"""Number of the page layout above; whoever moves pages to other memory checks it."""


@dataclass(frozen=True)
class LayerCache:
    """Keys and values per layer of one group, each [pages + 1, kv_heads, page_size, head_dim]."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Beside:
    """What a drafter keeps of the tokens of every page. It lives and dies, is copied, moved to the
    host and found by later prompts as the model's own part is, for it is the same page."""

    groups: tuple[CacheGroup, ...]
    dtype: str


def page_bytes(group: CacheGroup, page_size: int, dtype: str, beside: Beside | None = None) -> int:
    """Bytes of one page: all layers of the group, ``page_size`` tokens, and what lies beside."""
    own = page_size * group.bytes_per_token(ITEMSIZE[dtype])
    if beside is None:
        return own
    return _aligned(own) + sum(
        _aligned(page_bytes(each, page_size, beside.dtype)) for each in beside.groups
    )


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Slab:
    """KV memory of one engine rank.

    Attributes:
        rows: uint8 [pages + 1, page_bytes], the pages as bytes.
    """

    layout = LAYOUT

    def __init__(
        self,
        device: Device,
        groups: tuple[CacheGroup, ...],
        page_size: int,
        pages: int,
        dtype: str,
        beside: Beside | None = None,
    ) -> None:
        """ValueError: pages of several sizes, or a drafter beside several groups."""
        if beside is not None and len(groups) != 1:
            raise ValueError(
                f"the model has {len(groups)} cache groups, and a drafter with a model keeps what "
                f"it knows in the pages of one; leave --drafter out, or take one without a model"
            )
        sizes = {page_bytes(group, page_size, dtype, beside) for group in groups}
        if len(sizes) != 1:
            raise ValueError(f"cache groups must have pages of equal bytes, got {sorted(sizes)}")
        self.page_size = page_size
        self.pages = pages
        self.page_bytes = sizes.pop()
        self.bytes = (pages + 1) * self.page_bytes
        self._dtype = dtype
        self._beside = beside
        self.rows = device.allocate((pages + 1, self.page_bytes), "uint8")

    def layers(self, group: CacheGroup) -> LayerCache:
        """The slab as the layers of ``group`` see it."""
        return self._part(group, self._dtype, 0)

    def beside(self, group: CacheGroup) -> list[LayerCache]:
        """What a drafter sees beside the layers of ``group``: one for each of its own groups."""
        if self._beside is None:
            return []
        found, start = [], _aligned(page_bytes(group, self.page_size, self._dtype))
        for each in self._beside.groups:
            found.append(self._part(each, self._beside.dtype, start))
            start += _aligned(page_bytes(each, self.page_size, self._beside.dtype))
        return found

    def _part(self, group: CacheGroup, dtype: str, start: int) -> LayerCache:
        """Bytes from ``start`` of every page, as the layers of a group."""
        part = self.rows.narrow(1, start, page_bytes(group, self.page_size, dtype))
        shape = (-1, len(group.layers), 2, group.kv_heads, self.page_size, group.head_dim)
        view = part.view(getattr(torch, dtype)).view(shape)
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
