# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Keys and values of all rows, out of their pages, laid end to end as some attention wants them.

pages      |..row 0..|..row 0..|..row 0|     |..row 1..|..row 1
gathered   |..row 0....row 0....row 0|..row 1....row 1|
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import HostStep


@dataclass(frozen=True)
class Gathering:
    """Whose keys and values to copy, and where to.

    Attributes:
        page_table: [slots, pages] int32.
        row_slot: [R] int32.
        starts: [2, R + 1] int32 on the device: the first page of each row when all pages are
            counted, and the first token of each row in the copy; each with its end.
        pages, tokens: the ends.
    """

    page_table: torch.Tensor
    row_slot: torch.Tensor
    starts: torch.Tensor
    pages: int
    tokens: int

    @classmethod
    def of(cls, step: HostStep, page_size: int) -> Gathering:
        """All rows of a step. Only launches."""
        lengths = step.kv_len.long()
        starts = torch.zeros((2, len(lengths) + 1), dtype=torch.int32)
        starts[0, 1:] = ((lengths + page_size - 1) // page_size).cumsum(0)
        starts[1, 1:] = lengths.cumsum(0)
        pages, tokens = starts[:, -1].tolist()
        there = starts.to(step.page_table.device, non_blocking=True)
        return cls(step.page_table, step.row_slot, there, pages, tokens)


@triton.jit
def copy_heads(
    to, source, page, token, used, stride_p, stride_h, stride_t, scale,
    KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """A page's tokens of one KV head."""
    head, column = tl.program_id(1), tl.arange(0, WIDTH)[None, :]
    line = tl.arange(0, LINES)[:, None]
    at = source + page * stride_p + head * stride_h + line * stride_t + column
    value = tl.load(at, mask=used[:, None], other=0.0)
    if scale is not None:
        value = value.to(tl.float32) * tl.load(scale)
    there = to + (token[:, None].to(tl.int64) * KV_HEADS + head) * WIDTH + column
    tl.store(there, value.to(to.dtype.element_ty), mask=used[:, None])


@triton.jit(
    do_not_specialize=["rows"],
    do_not_specialize_on_alignment=["row_slot", "k_scale", "v_scale"],
)
def copy_page(
    keys, values, k_cache, v_cache, page_table, row_slot, starts, k_scale, v_scale,
    rows, slots, table_width, pages, table_stride,
    k_stride_p, k_stride_h, k_stride_t, v_stride_p, v_stride_h, v_stride_t,
    KV_HEADS: tl.constexpr, PAGE: tl.constexpr, LINES: tl.constexpr, WIDTH: tl.constexpr,
    ROWS_PAD: tl.constexpr,
):  # fmt: skip
    """Keys and values of one page and KV head."""
    entry, each = tl.program_id(0), tl.arange(0, ROWS_PAD)
    ends = tl.load(starts + 1 + each, mask=each < rows, other=2147483647)
    row = tl.sum((ends <= entry).to(tl.int32), 0)
    place = entry - tl.load(starts + row)
    slot = tl.load(row_slot + row)
    slot = tl.minimum(tl.maximum(slot, 0), slots - 1).to(tl.int64)
    page = tl.load(page_table + slot * table_stride + tl.minimum(place, table_width - 1))
    page = tl.minimum(tl.maximum(page, 0), pages - 1).to(tl.int64)
    line = tl.arange(0, LINES)
    tokens = starts + rows + 1
    token = tl.load(tokens + row) + place * PAGE + line
    used = (line < PAGE) & (token < tl.load(tokens + row + 1))
    copy_heads(
        keys, k_cache, page, token, used, k_stride_p, k_stride_h, k_stride_t, k_scale,
        KV_HEADS, WIDTH, LINES,
    )  # fmt: skip
    copy_heads(
        values, v_cache, page, token, used, v_stride_p, v_stride_h, v_stride_t, v_scale,
        KV_HEADS, WIDTH, LINES,
    )  # fmt: skip


def gather_kv(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    what: Gathering,
    scales: tuple[torch.Tensor, torch.Tensor] | tuple[None, None],
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [tokens, Hkv, D] in ``dtype``, times their scales if the cache has any."""
    pages, kv_heads, page, width = k_cache.shape
    table, rows = what.page_table, what.row_slot.shape[0]
    shape = (what.tokens, kv_heads, width)
    keys, values = (torch.empty(shape, dtype=dtype, device=k_cache.device) for _ in range(2))
    copy_page[(what.pages, kv_heads)](
        keys, values, k_cache, v_cache, table, what.row_slot, what.starts, *scales,
        rows, table.shape[0], table.shape[1], pages, table.stride(0),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        KV_HEADS=kv_heads, PAGE=page, LINES=triton.next_power_of_2(page), WIDTH=width,
        ROWS_PAD=triton.next_power_of_2(table.shape[0]),
        num_warps=max(1, min(4, page * width // 512)),
    )  # fmt: skip
    return keys, values
