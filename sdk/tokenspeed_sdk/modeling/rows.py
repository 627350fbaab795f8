# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A batch parted into decode rows and prefill rows, once per step for all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenspeed_sdk.modeling.batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class RowRange:
    """Some rows of a batch.

    Attributes:
        row_slot: [rows] int32.
        query_start: [rows + 1] int32, counted from the first token of the range.
        kv_len: [rows] int32.
    """

    row_slot: torch.Tensor
    query_start: torch.Tensor
    kv_len: torch.Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """What attention reads of a batch.

    Attributes:
        batch: the whole batch.
        decode: the rows [0, num_decode_rows) with one token each, or None.
        prefill: the other rows, or None.
    """

    batch: ForwardBatch
    decode: RowRange | None
    prefill: RowRange | None


def split_rows(batch: ForwardBatch) -> Rows:
    """Part the rows of a batch; no copy unless it has rows of both kinds."""
    n = batch.num_decode_rows
    everything = RowRange(batch.row_slot, batch.query_start, batch.kv_len)
    if n == 0:
        return Rows(batch, None, everything)
    if n == batch.row_slot.shape[0]:
        return Rows(batch, everything, None)
    decode = RowRange(batch.row_slot[:n], batch.query_start[: n + 1], batch.kv_len[:n])
    prefill = RowRange(batch.row_slot[n:], batch.query_start[n:] - n, batch.kv_len[n:])
    return Rows(batch, decode, prefill)
