# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The paged cache as the library takes it."""

from __future__ import annotations

import torch

LAYOUT = "PPPqqqqqqqqqqqqq"
"""Struct Pages of the library."""


def pages(
    k_cache: torch.Tensor, v_cache: torch.Tensor, page_table: torch.Tensor
) -> tuple[int, ...]:
    """Fields of LAYOUT for caches [P, Hkv, page, D] and a table [slots, max_pages] int32."""
    k_page, k_head, k_token, _ = k_cache.stride()
    v_page, v_head, v_token, _ = v_cache.stride()
    count, kv_heads, page_size, head_dim = k_cache.shape
    slots, max_pages = page_table.shape
    return (
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        page_table.data_ptr(),
        k_page,
        k_head,
        k_token,
        v_page,
        v_head,
        v_token,
        page_table.stride(0),
        count,
        slots,
        max_pages,
        kv_heads,
        page_size,
        head_dim,
    )
