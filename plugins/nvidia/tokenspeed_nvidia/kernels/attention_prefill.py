# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""attention_prefill@1 and attention_prefill_fp8@1: rows with several new tokens over paged KV.

FlashAttention-2: Dao, 2023, arXiv:2307.08691. A program takes a block of a row's new tokens and all
query heads of one KV head, laid out as rows of one matrix (token-major), so keys and values are
read once for the whole group. Which block of which row it is, it finds from query_start: the host
knows the number of tokens and rows only. The longest blocks start first. Keys and values of eight
bits become fp16 in registers, which holds every e4m3 number.
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

from tokenspeed_nvidia.kernels.attention_decode import LOG2_E, bind_call, load_pages, read_scales
from tokenspeed_nvidia.kernels.pdl import options, start_dependents, wait_for_inputs


@triton.jit
def attend_range(
    highest, total, output, queries, seen_until, k_cache, v_cache, table, table_width, pages,
    begin, end, length, scale_log2, k_stride_p, k_stride_t, v_stride_p, v_stride_t,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Online softmax over the tokens [begin, end); row i sees those below seen_until[i].

    Products are of the dtype of ``queries``.
    """
    column = tl.arange(0, WIDTH)
    page = load_pages(table, begin + tl.arange(0, BLOCK_N), table_width, pages, PAGE)
    for start in range(begin, end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        key_at = page * k_stride_p + (token % PAGE) * k_stride_t
        value_at = page * v_stride_p + (token % PAGE) * v_stride_t
        page = load_pages(table, token + BLOCK_N, table_width, pages, PAGE)
        keys = tl.load(k_cache + key_at[:, None] + column[None, :])
        keys = tl.trans(keys.to(queries.dtype))
        scores = tl.dot(queries, keys, input_precision="ieee")
        if MASKED:
            seen = token[None, :] < seen_until[:, None]
            if WINDOW > 0:
                seen = seen & (token[None, :] >= seen_until[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
            raised = tl.maximum(highest, tl.max(scores, axis=1) * scale_log2)
            base = tl.where(raised == float("-inf"), 0.0, raised)
            inside = token < length
            values = tl.load(
                v_cache + value_at[:, None] + column[None, :], mask=inside[:, None], other=0.0
            )
        else:
            raised = tl.maximum(highest, tl.max(scores, axis=1) * scale_log2)
            base = raised
            values = tl.load(v_cache + value_at[:, None] + column[None, :])
        weights = tl.exp2(scores * scale_log2 - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(weights, axis=1)
        output = output * shrink[:, None]
        values = values.to(queries.dtype)
        output = tl.dot(weights.to(queries.dtype), values, output, input_precision="ieee")
        highest = raised
    return highest, total, output


@triton.jit
def find_block(query_start, tokens, rows, program, ROWS_PAD: tl.constexpr, BLOCK_T: tl.constexpr):
    """The row of a program and which block of the row's tokens; below 0 behind the last."""
    each = tl.arange(0, ROWS_PAD)
    starts = tl.load(query_start + each, mask=each <= rows, other=0)
    nexts = tl.load(query_start + each + 1, mask=each < rows, other=tokens)
    counts = tl.where(each <= rows, tl.cdiv(tl.maximum(nexts - starts, 0), BLOCK_T), 0)
    ends = tl.cumsum(counts, 0)
    index = tl.sum(counts, 0) - 1 - program
    row = tl.sum((ends <= index).to(tl.int32), 0)
    return row, index - tl.max(tl.where(ends <= index, ends, 0), 0)


@triton.jit(
    do_not_specialize=["tokens", "rows"],
    do_not_specialize_on_alignment=["row_slot", "query_start", "kv_len", "k_scale", "v_scale"],
)
def prefill_blocks(
    out, q, k_cache, v_cache, page_table, row_slot, query_start, kv_len, k_scale, v_scale,
    tokens, rows, slots, table_width, pages, scale_log2,
    out_stride_t, out_stride_h, q_stride_t, q_stride_h, table_stride,
    k_stride_p, k_stride_h, k_stride_t, v_stride_p, v_stride_h, v_stride_t,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    ROWS_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One block of new tokens of one row, for the query heads of one KV head.

    The tokens behind the last row form a row of their own without KV: its output is zeros.
    """
    start_dependents(PDL)
    wait_for_inputs(PDL)
    BLOCK_T: tl.constexpr = BLOCK_M // GROUP
    row, block = find_block(query_start, tokens, rows, tl.program_id(0), ROWS_PAD, BLOCK_T)
    if block < 0:
        return
    head = tl.program_id(1)

    real = row < rows
    start = tl.load(query_start + row)
    count = tl.load(query_start + row + 1, mask=real, other=tokens) - start
    length = tl.load(kv_len + row, mask=real, other=0)
    length = tl.minimum(tl.maximum(length, 0), table_width * PAGE)
    slot = tl.load(row_slot + row, mask=real, other=0)
    slot = tl.minimum(tl.maximum(slot, 0), slots - 1).to(tl.int64)

    line = tl.arange(0, BLOCK_M)
    column = tl.arange(0, WIDTH)
    query = block * BLOCK_T + line // GROUP
    used = (line < BLOCK_T * GROUP) & (query < count)
    at = (start + query).to(tl.int64)
    query_head = head * GROUP + line % GROUP
    source = q + at * q_stride_t + query_head * q_stride_h
    queries = tl.load(source[:, None] + column[None, :], mask=used[:, None], other=0.0)
    scale_log2, value_scale = read_scales(k_scale, v_scale, scale_log2)
    if k_scale is not None:
        queries = queries.to(tl.float16)

    context = length - count  # tokens that were in the cache before
    seen_until = tl.where(used, tl.minimum(context + query + 1, length), 0)
    first_position = context + block * BLOCK_T
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        middle = begin
    else:
        middle = tl.maximum(tl.minimum(first_position + 1, length), 0) // BLOCK_N * BLOCK_N
    end = tl.minimum(first_position + BLOCK_T, length)

    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    output = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    table = page_table + slot * table_stride
    k_head = k_cache + head.to(tl.int64) * k_stride_h
    v_head = v_cache + head.to(tl.int64) * v_stride_h
    if WINDOW == 0:
        highest, total, output = attend_range(
            highest, total, output, queries, seen_until, k_head, v_head, table, table_width, pages,
            0, middle, length, scale_log2, k_stride_p, k_stride_t, v_stride_p, v_stride_t,
            False, WINDOW, WIDTH, PAGE, BLOCK_N,
        )  # fmt: skip
    highest, total, output = attend_range(
        highest, total, output, queries, seen_until, k_head, v_head, table, table_width, pages,
        middle, end, length, scale_log2, k_stride_p, k_stride_t, v_stride_p, v_stride_t,
        True, WINDOW, WIDTH, PAGE, BLOCK_N,
    )  # fmt: skip
    output = output * (value_scale / tl.where(total == 0.0, 1.0, total))[:, None]
    target = out + at * out_stride_t + query_head * out_stride_h
    tl.store(target[:, None] + column[None, :], output.to(out.dtype.element_ty), mask=used[:, None])


@dataclass(frozen=True)
class Tile:
    """Query lines and KV tokens of a block, warps, and KV blocks in flight."""

    block_m: int
    block_n: int
    warps: int
    stages: int


def choose_tile(head_dim: int, itemsize: int, arch: str) -> Tile:
    """The fastest that was measured, else one that fits shared memory and spills no register."""
    if itemsize > 2:  # without matrix instructions: for parity, not for speed
        return Tile(block_m=32, block_n=32 if head_dim <= 128 else 16, warps=8, stages=2)
    if head_dim > 128:
        return Tile(block_m=128, block_n=32, warps=8, stages=2)
    if arch == "sm_90":
        return Tile(block_m=128, block_n=128, warps=8, stages=3)
    return Tile(block_m=128, block_n=64, warps=8, stages=2)


def attention_prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_slot: torch.Tensor,
    query_start: torch.Tensor,
    kv_len: torch.Tensor,
    scale: float,
    scales: tuple[torch.Tensor, torch.Tensor] | tuple[None, None] = (None, None),
    *,
    window: int | None,
    tile: Tile,
    pdl: bool = False,
) -> torch.Tensor:
    """Causal attention of every row's last tokens over its pages.

    ``scales`` are those of keys and values of eight bits.

    Nothing that differs from step to step is compiled in: an engine compiles this once.
    """
    tokens, heads, width = q.shape
    out = torch.empty((tokens, heads, width), dtype=q.dtype, device=q.device)
    if not tokens:
        return out
    rows, kv_heads = row_slot.shape[0], k_cache.shape[1]
    group = heads // kv_heads
    most_blocks = tokens // (tile.block_m // group) + rows + 1
    prefill_blocks[(most_blocks, kv_heads)](
        out, q, k_cache, v_cache, page_table, row_slot, query_start, kv_len, *scales,
        tokens, rows, page_table.shape[0], page_table.shape[1], k_cache.shape[0], scale * LOG2_E,
        out.stride(0), out.stride(1), q.stride(0), q.stride(1), page_table.stride(0),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        GROUP=group, WIDTH=width, PAGE=k_cache.shape[2], WINDOW=window or 0,
        ROWS_PAD=triton.next_power_of_2(max(rows + 1, page_table.shape[0])),
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, PDL=pdl,
        num_warps=tile.warps, num_stages=tile.stages, **options(pdl),
    )  # fmt: skip
    return out


def bind(site: CallSite) -> Callable[..., torch.Tensor]:
    head_dim = site.traits["head_dim"]
    assert isinstance(head_dim, int)
    tile = choose_tile(head_dim, 4 if site.dtype == "float32" else 2, site.device.arch)
    return bind_call(site, partial(attention_prefill, tile=tile))
