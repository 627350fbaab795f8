# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One step's input to a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class CacheView:
    """One cache group as a step sees it.

    Attributes:
        keys, values: per layer of the group, [pages, kv_heads, page_size, head_dim], any strides
            with a unit last one; page 0 is the null page.
        page_table: [slots, max_pages] int32; row s lists the pages of slot s in token order.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    page_table: torch.Tensor


@dataclass(frozen=True)
class ForwardBatch:
    """Rows of requests with their new tokens laid end to end; decode rows come first.

    Attributes:
        token_ids: [tokens] int64.
        positions: [tokens] int32, position of each token in its request.
        token_slot: [tokens] int32, slot of the request that each token belongs to.
        row_slot: [rows] int32.
        query_start: [rows + 1] int32; row r owns tokens [query_start[r], query_start[r + 1]).
        kv_len: [rows] int32, tokens of the row in the cache once this step's are written.
        num_decode_rows: rows [0, n) have exactly one new token each.
        max_query_len, max_kv_len: host upper bounds over all rows.
        host_query_start, host_kv_len: the same as without ``host_``, on the host; None while the
            step is captured, since they change from replay to replay.
        caches: one view per cache group, in the order of the model's declaration.
        has_runs: decode rows may be of one slot, each a token longer than the one in front: a
            request's next token and guesses at those behind it.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    token_slot: torch.Tensor
    row_slot: torch.Tensor
    query_start: torch.Tensor
    kv_len: torch.Tensor
    num_decode_rows: int
    max_query_len: int
    max_kv_len: int
    caches: tuple[CacheView, ...]
    host_query_start: torch.Tensor | None = None
    host_kv_len: torch.Tensor | None = None
    has_runs: bool = False
