# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The pages of the test runner, and how a batch is parted into decode and prefill rows."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_sdk.contracts.model import CacheGroup
from tokenspeed_sdk.modeling import CacheView, ForwardBatch
from tokenspeed_sdk.modeling.rows import split_rows
from tokenspeed_sdk.testing.model.runner import PagedCache

GROUP = CacheGroup("full", (0, 1, 2), kv_heads=2, head_dim=8)


def paged(slots: int = 2) -> PagedCache:
    return PagedCache(
        [GROUP],
        slots=slots,
        pages_per_slot=3,
        page_size=4,
        dtype=torch.float32,
        device="cpu",
        seed=0,
    )


def test_pages_have_one_owner_and_come_back() -> None:
    cache = paged()
    cache.extend(1, 5)
    cache.extend(2, 12)
    cache.extend(1, 3)
    owned = cache.page_table[cache.page_table > 0].tolist()
    assert len(set(owned)) == len(owned) == 5
    assert cache.lengths == {1: 8, 2: 12}
    cache.release(2)
    assert not cache.page_table[2].any()
    cache.extend(2, 12)
    (view,) = cache.views
    assert [keys.shape for keys in view.keys] == [(7, 2, 4, 8)] * 3


@pytest.mark.parametrize("slot", [0, 3])
def test_reserved_slots(slot: int) -> None:
    with pytest.raises(ValueError, match=f"slot {slot} is nobody's; use 1 to 2"):
        paged().extend(slot, 1)


def test_too_long() -> None:
    with pytest.raises(ValueError, match="slot 1 would hold 13 tokens; raise max_model_len"):
        paged().extend(1, 13)


def batch(starts: list[int], decoding: int) -> ForwardBatch:
    rows = len(starts) - 1
    ints = torch.arange(starts[-1], dtype=torch.int32)
    start = torch.tensor(starts, dtype=torch.int32)
    caches: tuple[CacheView, ...] = ()
    return ForwardBatch(
        ints.long(), ints, ints, ints[:rows], start, ints[:rows], decoding, 9, 9, caches
    )


def test_split_rows() -> None:
    mixed = split_rows(batch([0, 1, 2, 7, 9], 2))
    assert mixed.decode is not None
    assert mixed.prefill is not None
    assert mixed.decode.row_slot.tolist() == [0, 1]
    assert mixed.prefill.kv_len.tolist() == [2, 3]
    assert mixed.prefill.query_start.tolist() == [0, 5, 7]
    assert split_rows(batch([0, 1, 2], 2)).prefill is None
    assert split_rows(batch([0, 4, 8], 0)).decode is None
