# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""page_table_update@1: deltas into resident page tables, in one launch."""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

BLOCK = 256


@triton.jit
def write_entries(
    page_table, slot_epoch, slot, epoch, index, page, count, slots, table_width, table_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK entries a program. An entry outside the table is left out.

    Entries of one slot carry one epoch, so whichever program comes first, all of them pass or none.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counted = at < tl.load(count)
    row = tl.load(slot + at, mask=counted, other=0)
    column = tl.load(index + at, mask=counted, other=0)
    inside = counted & (row >= 0) & (row < slots) & (column >= 0) & (column < table_width)
    mine = tl.load(epoch + at, mask=inside, other=0)
    current = inside & (mine >= tl.load(slot_epoch + row, mask=inside, other=0))
    entry = tl.load(page + at, mask=current, other=0)
    tl.store(page_table + row.to(tl.int64) * table_stride + column, entry, mask=current)
    tl.store(slot_epoch + row, mine, mask=current)


def page_table_update(
    page_table: torch.Tensor,
    slot_epoch: torch.Tensor,
    slot: torch.Tensor,
    epoch: torch.Tensor,
    index: torch.Tensor,
    page: torch.Tensor,
    count: torch.Tensor,
) -> None:
    """Apply the first ``count`` entries; the launch covers all, so that a graph may hold it."""
    write_entries[(triton.cdiv(slot.shape[0], BLOCK),)](
        page_table, slot_epoch, slot, epoch, index, page, count,
        page_table.shape[0], page_table.shape[1], page_table.stride(0), BLOCK=BLOCK,
    )  # fmt: skip


def bind(site: CallSite) -> Callable[..., None]:
    return page_table_update
