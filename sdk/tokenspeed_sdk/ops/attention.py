# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""attention_prefill@1 and attention_decode@1: causal attention over paged KV.

Scaled dot-product attention: Vaswani et al., 2017, arXiv:1706.03762; grouped query heads: Ainslie
et al., 2023, arXiv:2305.13245; pages: Kwon et al., 2023, arXiv:2309.06180.
"""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops import examples
from tokenspeed_sdk.ops._args import FLOATS, INT32, Args, compute_dtype
from tokenspeed_sdk.ops.op import Op, Result, Traits


def attention_prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_slot: torch.Tensor,
    query_start: torch.Tensor,
    kv_len: torch.Tensor,
    scale: float,
    *,
    window: int | None,
) -> torch.Tensor:
    """Causal attention of rows with several new tokens each.

    Row r's queries are the last ``query_start[r + 1] - query_start[r]`` of its ``kv_len[r]``
    tokens, whose keys and values are in the cache already. Query head h reads KV head
    ``h // (Hq / Hkv)``; the query at position i sees the keys at positions j with
    ``i - window < j <= i``:

        out = sum over j of softmax_j(scale * q_i . k_j) * v_j

    Args:
        q: [T, Hq, D] floating; tokens from ``query_start[R]`` on belong to no row.
        k_cache, v_cache: [P, Hkv, page, D] in the dtype of ``q``.
        page_table: [S2, M] int32; row s lists the pages of slot s in token order.
        row_slot: [R] int32, each in [0, S2).
        query_start: [R + 1] int32, rising from 0 to at most T.
        kv_len: [R] int32, tokens of the row in the cache, at most M * page.
        scale: factor of the scores, usually ``D ** -0.5``.
        window: keys that a query sees, itself included; None for all.

    Returns:
        [T, Hq, D] in the dtype of ``q``; zeros for tokens without a row.

    Raises:
        ValueError: a shape or dtype is wrong, or an index lies outside its tensor.
    """
    args = Args("attention_prefill@1")
    args.tensor("q", q, "T Hq D", FLOATS)
    _check_cache(args, q, k_cache, v_cache, page_table, row_slot, kv_len)
    args.tensor("query_start", query_start, "R+1", INT32)
    starts = query_start.tolist()
    if starts[0] != 0 or starts != sorted(starts) or starts[-1] > q.shape[0]:
        args.fail("query_start", f"must rise from 0 to at most {q.shape[0]} tokens; got {starts}")
    out = torch.zeros_like(q)
    for r, (slot, length) in enumerate(zip(row_slot.tolist(), kv_len.tolist(), strict=True)):
        start, end = starts[r], starts[r + 1]
        if end - start > length:
            args.fail("kv_len", f"of row {r} must count its {end - start} queries; got {length}")
        if end > start:
            keys = _row_tokens(k_cache, page_table[slot], length)
            values = _row_tokens(v_cache, page_table[slot], length)
            out[start:end] = _attend(q[start:end], keys, values, scale, window)
    return out


def attention_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_slot: torch.Tensor,
    kv_len: torch.Tensor,
    scale: float,
    *,
    window: int | None,
) -> torch.Tensor:
    """Attention of rows with one new token each: ``attention_prefill`` with one query per row.

    Args:
        q: [R, Hq, D] floating.
        k_cache, v_cache: [P, Hkv, page, D] in the dtype of ``q``.
        page_table: [S2, M] int32; row s lists the pages of slot s in token order.
        row_slot: [R] int32, each in [0, S2).
        kv_len: [R] int32, tokens of the row in the cache, its new one included; 0 for a dead row.
        scale: factor of the scores, usually ``D ** -0.5``.
        window: keys that a query sees, itself included; None for all.

    Returns:
        [R, Hq, D] in the dtype of ``q``; zeros for dead rows.

    Raises:
        ValueError: a shape or dtype is wrong, or an index lies outside its tensor.
    """
    args = Args("attention_decode@1")
    args.tensor("q", q, "R Hq D", FLOATS)
    _check_cache(args, q, k_cache, v_cache, page_table, row_slot, kv_len)
    out = torch.zeros_like(q)
    for r, (slot, length) in enumerate(zip(row_slot.tolist(), kv_len.tolist(), strict=True)):
        if length > 0:
            keys = _row_tokens(k_cache, page_table[slot], length)
            values = _row_tokens(v_cache, page_table[slot], length)
            out[r : r + 1] = _attend(q[r : r + 1], keys, values, scale, window)
    return out


def _check_cache(
    args: Args,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_slot: torch.Tensor,
    kv_len: torch.Tensor,
) -> None:
    args.tensor("k_cache", k_cache, "P Hkv page D", FLOATS)
    args.tensor("v_cache", v_cache, "P Hkv page D", FLOATS)
    args.same_dtype(q=q, k_cache=k_cache, v_cache=v_cache)
    args.tensor("page_table", page_table, "S2 M", INT32)
    args.tensor("row_slot", row_slot, "R", INT32)
    args.tensor("kv_len", kv_len, "R", INT32)
    if q.shape[1] % k_cache.shape[1]:
        args.fail("q", f"has {q.shape[1]} heads, which {k_cache.shape[1]} KV heads do not divide")
    args.within("row_slot", row_slot, 0, page_table.shape[0])
    args.within("kv_len", kv_len, 0, page_table.shape[1] * k_cache.shape[2] + 1)


def _row_tokens(cache: torch.Tensor, pages: torch.Tensor, length: int) -> torch.Tensor:
    """The first ``length`` tokens that lie in ``pages``: [Hkv, length, D]."""
    _, kv_heads, page, head_dim = cache.shape
    used = cache[pages[: -(-length // page)].long()]
    return used.transpose(0, 1).reshape(kv_heads, -1, head_dim)[:, :length]


def _attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """The queries [n, Hq, D] of the last n tokens of a row over all its tokens [Hkv, L, D]."""
    dtype = compute_dtype(q)
    group = q.shape[1] // keys.shape[0]
    wide_keys = keys.to(dtype).repeat_interleave(group, dim=0)
    wide_values = values.to(dtype).repeat_interleave(group, dim=0)
    scores = torch.einsum("ihd,hjd->hij", q.to(dtype), wide_keys) * scale
    j = torch.arange(keys.shape[1], device=q.device)
    i = j[-q.shape[0] :, None]
    seen = j <= i
    if window is not None:
        seen &= j > i - window
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hij,hjd->ihd", weights, wide_values).to(q.dtype)


def _result(traits: Traits, q: torch.Tensor, *_: object) -> Result:
    return (q.shape, q.dtype)


_TRAITS = ("heads", "kv_heads", "head_dim", "page_size", "window")
ATTENTION_PREFILL = Op(
    "attention_prefill@1",
    attention_prefill,
    _TRAITS,
    keywords=("window",),
    result=_result,
    example=examples.attention_prefill,
)
ATTENTION_DECODE = Op(
    "attention_decode@1",
    attention_decode,
    _TRAITS,
    keywords=("window",),
    result=_result,
    example=examples.attention_decode,
)
