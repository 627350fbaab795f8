# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Pages with a drafter's part: apart from the model's, and wherever a page goes, with it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenspeed.cache.slab import Beside, Slab, page_bytes
from tokenspeed_cpu.platform import CpuPlatform
from tokenspeed_sdk.contracts.model import CacheGroup

PAGES = 3

groups = st.builds(
    CacheGroup,
    st.just("full"),
    st.integers(1, 3).map(lambda n: tuple(range(n))),
    st.integers(1, 3),
    st.integers(1, 9),
)
dtypes = st.sampled_from(["float32", "bfloat16", "float8_e4m3fn"])


@given(groups, dtypes, st.lists(groups, max_size=3), st.sampled_from(["float32", "bfloat16"]))
def test_parts_do_not_touch_and_move_together(
    own: CacheGroup, dtype: str, more: list[CacheGroup], theirs: str
) -> None:
    device = CpuPlatform().open()
    beside = Beside(tuple(more), theirs)
    slab = Slab(device, (own,), 5, PAGES, dtype, beside)
    assert slab.page_bytes == page_bytes(own, 5, dtype, beside)
    parts = [slab.layers(own), *slab.beside(own)]
    tensors = [each for part in parts for each in (*part.keys, *part.values)]
    for number, tensor in enumerate(tensors, 1):
        assert tensor.shape[0] == PAGES + 1
        tensor[1].fill_(number)
    for number, tensor in enumerate(tensors, 1):
        assert bool((tensor[1].float() == number).all())
        assert not tensor[2].float().any()
    slab.copy_pages([(1, 2)])
    for tensor in tensors:
        assert torch.equal(tensor[1].float(), tensor[2].float())


def test_a_drafter_needs_one_group() -> None:
    group = CacheGroup("full", (0,), 2, 8)
    with pytest.raises(ValueError, match="2 cache groups"):
        Slab(CpuPlatform().open(), (group, group), 4, 2, "float32", Beside((group,), "float32"))
