# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""page_table_update@1 against its reference."""

from __future__ import annotations

import pytest
import torch

from .support import bind, reference

SLOTS, WIDTH, ENTRIES = 9, 64, 300


def ints(rng: torch.Generator, low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=rng, dtype=torch.int32)


@pytest.mark.parametrize("count", [0, 1, 290, ENTRIES])
def test_entries_behind_an_epoch_or_the_count_are_left_out(
    rng: torch.Generator, count: int
) -> None:
    places = torch.randperm(SLOTS * WIDTH, generator=rng)[:ENTRIES]
    slot, index = (places // WIDTH).int(), (places % WIDTH).int()
    epoch = ints(rng, 0, 5, SLOTS)[slot.long()]
    page = ints(rng, 1, 1000, ENTRIES)
    table, epochs = ints(rng, 1, 1000, SLOTS, WIDTH), ints(rng, 0, 5, SLOTS)
    wanted = (table.clone(), epochs.clone())
    entries = (slot, epoch, index, page, torch.tensor([count], dtype=torch.int32))
    bind("page_table_update@1")(table, epochs, *entries)
    reference("page_table_update@1")(*wanted, *entries)
    assert torch.equal(table, wanted[0])
    assert torch.equal(epochs, wanted[1])
