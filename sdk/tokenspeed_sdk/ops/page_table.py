# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""page_table_update@1: bring resident page tables up to date, entry by entry."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import INT32, Args
from tokenspeed_sdk.ops.op import Op


def page_table_update(
    page_table: torch.Tensor,
    slot_epoch: torch.Tensor,
    slot: torch.Tensor,
    epoch: torch.Tensor,
    index: torch.Tensor,
    page: torch.Tensor,
    count: torch.Tensor,
) -> None:
    """The first ``count`` entries: ``page_table[slot[d], index[d]] = page[d]``.

    Tables travel as deltas and stay on the device. A slot's epoch counts its tenants: an entry
    whose epoch is behind ``slot_epoch`` belongs to an earlier tenant and is dropped; else the
    slot's epoch becomes the entry's. All entries of one slot in one call have the same epoch, and
    no two name the same place. How many entries count is read on the device, so that a captured
    graph may hold the call.

    Args:
        page_table: [S2, M] int32; written IN PLACE.
        slot_epoch: [S2] int32; written IN PLACE.
        slot, epoch, index, page: [D] int32; entries from ``count`` on are stale.
        count: [1] int32, in [0, D].

    Raises:
        ValueError: a shape or dtype is wrong, or a counted entry lies outside the table.
    """
    args = Args("page_table_update@1")
    args.tensor("page_table", page_table, "S2 M", INT32)
    args.tensor("slot_epoch", slot_epoch, "S2", INT32)
    for name, value in (("slot", slot), ("epoch", epoch), ("index", index), ("page", page)):
        args.tensor(name, value, "D", INT32)
    args.tensor("count", count, "1", INT32)
    args.within("count", count, 0, slot.shape[0] + 1)
    counted = slice(int(count))
    args.within("slot", slot[counted], 0, page_table.shape[0])
    args.within("index", index[counted], 0, page_table.shape[1])
    entries = (column[counted].tolist() for column in (slot, epoch, index, page))
    for s, e, i, p in zip(*entries, strict=True):
        if e >= slot_epoch[s]:
            slot_epoch[s] = e
            page_table[s, i] = p


PAGE_TABLE_UPDATE = Op("page_table_update@1", page_table_update, traits=())
