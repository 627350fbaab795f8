# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""page_table_update@1 by torch: a few hundred entries now and then."""

from __future__ import annotations

import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite

from tokenspeed_cpu.kernels.base import TorchKernel


class PageTableUpdate(TorchKernel):
    """All entries at once."""

    op = "page_table_update@1"
    name = "cpu"
    score = 100
    reason = "torch, all entries at once"

    def bind(self, site: CallSite) -> BoundKernel:
        return _update


def _update(
    page_table: torch.Tensor,
    slot_epoch: torch.Tensor,
    slot: torch.Tensor,
    epoch: torch.Tensor,
    index: torch.Tensor,
    page: torch.Tensor,
    count: torch.Tensor,
) -> None:
    """Entries of one slot carry one epoch, so it does not matter which of them is written last."""
    counted = slice(int(count))
    rows, epochs = slot[counted].long(), epoch[counted]
    current = epochs >= slot_epoch[rows]
    rows = rows[current]
    slot_epoch[rows] = epochs[current]
    page_table[rows, index[counted].long()[current]] = page[counted][current]
