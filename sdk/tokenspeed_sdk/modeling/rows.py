# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A batch parted into decode rows and prefill rows, once per step for all layers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from tokenspeed_sdk.contracts.kernel import HostStep, PlannedKernel
from tokenspeed_sdk.modeling.batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class RowRange:
    """Some rows of a batch.

    Attributes:
        row_slot: [rows] int32.
        query_start: [rows + 1] int32, counted from the first token of the range.
        kv_len: [rows] int32.
        host_query_start, host_kv_len: the same two on the host; None while a step is captured.
    """

    row_slot: torch.Tensor
    query_start: torch.Tensor
    kv_len: torch.Tensor
    host_query_start: torch.Tensor | None
    host_kv_len: torch.Tensor | None

    def host_step(self, page_table: torch.Tensor) -> HostStep:
        """What a kernel plans with. RuntimeError while a step is captured."""
        if self.host_query_start is None or self.host_kv_len is None:
            raise RuntimeError(
                "the attention kernel plans each step on the host and cannot be captured; "
                "choose another kernel for this op, or run without graphs (--no-graphs)"
            )
        return HostStep(self.host_query_start, self.host_kv_len, page_table, self.row_slot)


@dataclass(frozen=True, slots=True)
class Rows:
    """What attention reads of a batch.

    Attributes:
        batch: the whole batch.
        decode: the rows [0, num_decode_rows) with one token each, or None.
        prefill: the other rows, or None.
        plans: what kernels prepared for this step, by what the plan depends on.
    """

    batch: ForwardBatch
    decode: RowRange | None
    prefill: RowRange | None
    plans: dict[Hashable, Any] = field(default_factory=dict)

    def plan(self, kernel: PlannedKernel, rows: RowRange, group: int, scale: float) -> Any:
        """The kernel's plan for some rows over one cache group, made at the first call."""
        key = (kernel.plan_key, group, scale)
        if key not in self.plans:
            step = rows.host_step(self.batch.caches[group].page_table)
            self.plans[key] = kernel.plan(step, scale)
        return self.plans[key]


def split_rows(batch: ForwardBatch) -> Rows:
    """Part the rows of a batch; no copy unless it has rows of both kinds."""
    n = batch.num_decode_rows
    starts, lengths = batch.host_query_start, batch.host_kv_len
    everything = RowRange(batch.row_slot, batch.query_start, batch.kv_len, starts, lengths)
    if n == 0:
        return Rows(batch, None, everything)
    if n == batch.row_slot.shape[0]:
        return Rows(batch, everything, None)
    decode = RowRange(
        batch.row_slot[:n],
        batch.query_start[: n + 1],
        batch.kv_len[:n],
        None if starts is None else starts[: n + 1],
        None if lengths is None else lengths[:n],
    )
    prefill = RowRange(
        batch.row_slot[n:],
        batch.query_start[n:] - n,
        batch.kv_len[n:],
        None if starts is None else starts[n:] - n,
        None if lengths is None else lengths[n:],
    )
    return Rows(batch, decode, prefill)
