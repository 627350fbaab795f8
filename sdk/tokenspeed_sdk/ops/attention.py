# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""attention_prefill@1, attention_decode@1, attention_verify@1: causal attention over paged KV.

Scaled dot-product attention: Vaswani et al., 2017, arXiv:1706.03762; grouped query heads: Ainslie
et al., 2023, arXiv:2305.13245; pages: Kwon et al., 2023, arXiv:2309.06180.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    rows = _rows(args, q, k_cache, v_cache, page_table, row_slot, kv_len)
    return prefill_rows(args, q, rows, query_start, scale, window)


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
    rows = _rows(args, q, k_cache, v_cache, page_table, row_slot, kv_len)
    return decode_rows(q, rows, scale, window)


def attention_verify(
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
    """``attention_decode`` where some rows are of one slot: a token, and guesses at what follows.

    Rows that follow each other, of one slot and each a token longer than the one in front, are a
    run, of at most as many rows as the site has ``queries``. A kernel may read the keys and values
    of a run once; what is computed does not depend on it.

    Args:
        q: [R, Hq, D] floating.
        k_cache, v_cache: [P, Hkv, page, D] in the dtype of ``q``.
        page_table: [S2, M] int32; row s lists the pages of slot s in token order.
        row_slot: [R] int32, each in [0, S2).
        kv_len: [R] int32, tokens that a row sees, its own included; 0 for a dead row.
        scale: factor of the scores, usually ``D ** -0.5``.
        window: keys that a query sees, itself included; None for all.

    Returns:
        [R, Hq, D] in the dtype of ``q``; zeros for dead rows.

    Raises:
        ValueError: a shape or dtype is wrong, or an index lies outside its tensor.
    """
    args = Args("attention_verify@1")
    args.tensor("q", q, "R Hq D", FLOATS)
    rows = _rows(args, q, k_cache, v_cache, page_table, row_slot, kv_len)
    return decode_rows(q, rows, scale, window)


@dataclass(frozen=True)
class PagedRows:
    """Tokens of rows in a paged cache.

    Attributes:
        k_cache, v_cache: [P, Hkv, page, D].
        page_table: [S2, M] int32.
        row_slot, kv_len: [R] int32.
        k_scale, v_scale: [1] float32, what cached numbers are multiplied with; None: with 1.
    """

    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor
    row_slot: torch.Tensor
    kv_len: torch.Tensor
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    def check(self, args: Args, q: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
        """Shapes, dtypes and ranges, beside queries that were checked."""
        args.tensor("k_cache", self.k_cache, "P Hkv page D", dtypes)
        args.tensor("v_cache", self.v_cache, "P Hkv page D", dtypes)
        args.tensor("page_table", self.page_table, "S2 M", INT32)
        args.tensor("row_slot", self.row_slot, "R", INT32)
        args.tensor("kv_len", self.kv_len, "R", INT32)
        heads, kv_heads, page = q.shape[1], *self.k_cache.shape[1:3]
        if heads % kv_heads:
            args.fail("q", f"has {heads} heads, which {kv_heads} KV heads do not divide")
        args.within("row_slot", self.row_slot, 0, self.page_table.shape[0])
        args.within("kv_len", self.kv_len, 0, self.page_table.shape[1] * page + 1)

    def slots_and_lengths(self) -> Iterator[tuple[int, int]]:
        """Of each row."""
        return zip(self.row_slot.tolist(), self.kv_len.tolist(), strict=True)

    def keys_and_values(
        self, slot: int, length: int, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The first ``length`` tokens of a slot, [Hkv, length, D] each, in the dtype."""
        pages = self.page_table[slot]
        keys = _row_tokens(self.k_cache, pages, length).to(dtype)
        values = _row_tokens(self.v_cache, pages, length).to(dtype)
        if self.k_scale is not None:
            keys = keys * self.k_scale.to(dtype)
        if self.v_scale is not None:
            values = values * self.v_scale.to(dtype)
        return keys, values


def prefill_rows(
    args: Args,
    q: torch.Tensor,
    rows: PagedRows,
    query_start: torch.Tensor,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Attention of the queries of each row; checks ``query_start``."""
    args.tensor("query_start", query_start, "R+1", INT32)
    starts = query_start.tolist()
    if starts[0] != 0 or starts != sorted(starts) or starts[-1] > q.shape[0]:
        args.fail("query_start", f"must rise from 0 to at most {q.shape[0]} tokens; got {starts}")
    out = torch.zeros_like(q)
    for r, (slot, length) in enumerate(rows.slots_and_lengths()):
        start, end = starts[r], starts[r + 1]
        if end - start > length:
            args.fail("kv_len", f"of row {r} must count its {end - start} queries; got {length}")
        if end > start:
            keys, values = rows.keys_and_values(slot, length, compute_dtype(q))
            out[start:end] = _attend(q[start:end], keys, values, scale, window)
    return out


def decode_rows(q: torch.Tensor, rows: PagedRows, scale: float, window: int | None) -> torch.Tensor:
    """Attention of one query for each row."""
    out = torch.zeros_like(q)
    for r, (slot, length) in enumerate(rows.slots_and_lengths()):
        if length > 0:
            keys, values = rows.keys_and_values(slot, length, compute_dtype(q))
            out[r : r + 1] = _attend(q[r : r + 1], keys, values, scale, window)
    return out


def _row_tokens(cache: torch.Tensor, pages: torch.Tensor, length: int) -> torch.Tensor:
    """The first ``length`` tokens that lie in ``pages``: [Hkv, length, D]."""
    _, kv_heads, page, head_dim = cache.shape
    used = cache[pages[: -(-length // page)].long()]
    return used.transpose(0, 1).reshape(kv_heads, -1, head_dim)[:, :length]


def _attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """The queries [n, Hq, D] of the last n tokens of a row over all its tokens [Hkv, L, D].

    Keys and values have the dtype that is computed in.
    """
    dtype = keys.dtype
    group = q.shape[1] // keys.shape[0]
    wide_keys = keys.repeat_interleave(group, dim=0)
    wide_values = values.repeat_interleave(group, dim=0)
    scores = torch.einsum("ihd,hjd->hij", q.to(dtype), wide_keys) * scale
    j = torch.arange(keys.shape[1], device=q.device)
    i = j[-q.shape[0] :, None]
    seen = j <= i
    if window is not None:
        seen &= j > i - window
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hij,hjd->ihd", weights, wide_values).to(q.dtype)


def attended(traits: Traits, q: torch.Tensor, *_: object) -> Result:
    """What attention gives: a value for every query head."""
    return (q.shape, q.dtype)


def _rows(
    args: Args,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_slot: torch.Tensor,
    kv_len: torch.Tensor,
) -> PagedRows:
    """The rows that attention reads; checks their arguments."""
    rows = PagedRows(k_cache, v_cache, page_table, row_slot, kv_len)
    rows.check(args, q, FLOATS)
    args.same_dtype(q=q, k_cache=k_cache, v_cache=v_cache)
    return rows


TRAITS = ("heads", "kv_heads", "head_dim", "page_size", "window")
ATTENTION_PREFILL = Op(
    "attention_prefill@1",
    attention_prefill,
    TRAITS,
    keywords=("window",),
    result=attended,
    example=examples.attention_prefill,
)
ATTENTION_DECODE = Op(
    "attention_decode@1",
    attention_decode,
    TRAITS,
    keywords=("window",),
    result=attended,
    example=examples.attention_decode,
)
ATTENTION_VERIFY = Op(
    "attention_verify@1",
    attention_verify,
    (*TRAITS, "queries"),
    keywords=("window",),
    result=attended,
)
