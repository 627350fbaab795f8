# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""attention_prefill_fp8@1, attention_decode_fp8@1, attention_verify_fp8@1: attention over pages of
eight-bit numbers."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops import examples
from tokenspeed_sdk.ops._args import E4M3, FLOAT32, FLOATS, Args
from tokenspeed_sdk.ops.attention import TRAITS, PagedRows, attended, decode_rows, prefill_rows
from tokenspeed_sdk.ops.op import Op


def attention_prefill_fp8(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_slot: torch.Tensor,
    query_start: torch.Tensor,
    kv_len: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    scale: float,
    *,
    window: int | None,
) -> torch.Tensor:
    """``attention_prefill@1`` over keys ``k_cache * k_scale`` and values ``v_cache * v_scale``.

    Args:
        q: [T, Hq, D] floating; tokens from ``query_start[R]`` on belong to no row.
        k_cache, v_cache: [P, Hkv, page, D] float8_e4m3fn.
        page_table: [S2, M] int32; row s lists the pages of slot s in token order.
        row_slot: [R] int32, each in [0, S2).
        query_start: [R + 1] int32, rising from 0 to at most T.
        kv_len: [R] int32, tokens of the row in the cache, at most M * page.
        k_scale, v_scale: [1] float32, positive.
        scale: factor of the scores, usually ``D ** -0.5``.
        window: keys that a query sees, itself included; None for all.

    Returns:
        [T, Hq, D] in the dtype of ``q``; zeros for tokens without a row.

    Raises:
        ValueError: a shape or dtype is wrong, or an index lies outside its tensor.
    """
    args = Args("attention_prefill_fp8@1")
    args.tensor("q", q, "T Hq D", FLOATS)
    cache = (k_cache, v_cache, page_table, row_slot, kv_len)
    rows = _rows(args, q, *cache, k_scale, v_scale)
    return prefill_rows(args, q, rows, query_start, scale, window)


def attention_decode_fp8(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_slot: torch.Tensor,
    kv_len: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    scale: float,
    *,
    window: int | None,
) -> torch.Tensor:
    """``attention_prefill_fp8@1`` with one query per row.

    Args:
        q: [R, Hq, D] floating.
        k_cache, v_cache: [P, Hkv, page, D] float8_e4m3fn.
        page_table: [S2, M] int32; row s lists the pages of slot s in token order.
        row_slot: [R] int32, each in [0, S2).
        kv_len: [R] int32, tokens of the row in the cache, its new one included; 0 for a dead row.
        k_scale, v_scale: [1] float32, positive.
        scale: factor of the scores, usually ``D ** -0.5``.
        window: keys that a query sees, itself included; None for all.

    Returns:
        [R, Hq, D] in the dtype of ``q``; zeros for dead rows.

    Raises:
        ValueError: a shape or dtype is wrong, or an index lies outside its tensor.
    """
    args = Args("attention_decode_fp8@1")
    args.tensor("q", q, "R Hq D", FLOATS)
    cache = (k_cache, v_cache, page_table, row_slot, kv_len)
    return decode_rows(q, _rows(args, q, *cache, k_scale, v_scale), scale, window)


def attention_verify_fp8(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_slot: torch.Tensor,
    kv_len: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    scale: float,
    *,
    window: int | None,
) -> torch.Tensor:
    """``attention_decode_fp8@1`` of rows some of which are a run, as in ``attention_verify@1``.

    Args:
        q: [R, Hq, D] floating.
        k_cache, v_cache: [P, Hkv, page, D] float8_e4m3fn.
        page_table: [S2, M] int32; row s lists the pages of slot s in token order.
        row_slot: [R] int32, each in [0, S2).
        kv_len: [R] int32, tokens that a row sees, its own included; 0 for a dead row.
        k_scale, v_scale: [1] float32, positive.
        scale: factor of the scores, usually ``D ** -0.5``.
        window: keys that a query sees, itself included; None for all.

    Returns:
        [R, Hq, D] in the dtype of ``q``; zeros for dead rows.

    Raises:
        ValueError: a shape or dtype is wrong, or an index lies outside its tensor.
    """
    args = Args("attention_verify_fp8@1")
    args.tensor("q", q, "R Hq D", FLOATS)
    cache = (k_cache, v_cache, page_table, row_slot, kv_len)
    return decode_rows(q, _rows(args, q, *cache, k_scale, v_scale), scale, window)


def _rows(
    args: Args,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_slot: torch.Tensor,
    kv_len: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> PagedRows:
    """The rows that attention reads; checks their arguments."""
    rows = PagedRows(k_cache, v_cache, page_table, row_slot, kv_len, k_scale, v_scale)
    rows.check(args, q, E4M3)
    args.tensor("k_scale", k_scale, "1", FLOAT32)
    args.tensor("v_scale", v_scale, "1", FLOAT32)
    return rows


ATTENTION_PREFILL_FP8 = Op(
    "attention_prefill_fp8@1",
    attention_prefill_fp8,
    TRAITS,
    keywords=("window",),
    result=attended,
    example=examples.attention_prefill_fp8,
)
ATTENTION_DECODE_FP8 = Op(
    "attention_decode_fp8@1",
    attention_decode_fp8,
    TRAITS,
    keywords=("window",),
    result=attended,
    example=examples.attention_decode_fp8,
)
ATTENTION_VERIFY_FP8 = Op(
    "attention_verify_fp8@1",
    attention_verify_fp8,
    (*TRAITS, "queries"),
    keywords=("window",),
    result=attended,
)
