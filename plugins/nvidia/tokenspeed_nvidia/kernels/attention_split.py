# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""attention_decode@1 and attention_decode_fp8@1 for few rows: every row in as many splits.

Split-KV decoding: Dao et al., Flash-Decoding, 2023. A program is one (row, KV head, split), and
starts without a look at other rows: at few rows the step waits for latencies, not for bytes. The
grid covers the longest row there may be; how many blocks a split has, the row's length says on the
device, and splits behind the last return at once.

The split that arrives last adds up in the order of the splits, so the sum does not depend on it.
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

from tokenspeed_nvidia.kernels.attention_decode import (
    LOG2_E,
    MIN_DOT_ROWS,
    PART_ELEMENTS,
    Scratch,
    attend_blocks,
    bind_call,
    read_scales,
    row_blocks,
    store_heads,
)
from tokenspeed_nvidia.kernels.e4m3 import has_ptx
from tokenspeed_nvidia.kernels.pdl import options, start_dependents, wait_for_inputs

MOST_SPLITS = 32
FEW_PAIRS = 128
"""Of a row and a KV head: more give every multiprocessor enough to do in any case."""

SPLITS_ANYWAY = 4
"""However many rows there are, since one may be much longer than the others."""

DEPENDENT_ROWS = 8
"""With no more rows, the product behind it gains less from an early start than this loses."""

FEWEST_TOKENS = 128
"""Of a split: shorter ones cost more to add up than they gain."""

SHORT_CONTEXT = 1024
"""Tokens of a row that is not cut where enough rows are there to fill the GPU."""


@triton.jit
def add_splits(
    part_out, part_log, unit, splits,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """The output [HEADS, WIDTH] of a unit from what its splits left; all maxima are read first."""
    head = tl.arange(0, HEADS)
    column = tl.arange(0, WIDTH)
    every = tl.arange(0, SPLITS)
    there = (every < splits)[:, None] & (head < GROUP)[None, :]
    log_at = part_log + (unit * SPLITS + every)[:, None] * GROUP + head[None, :]
    # .cg: other multiprocessors wrote this, so not from the cache of this one
    logs = tl.load(log_at, mask=there, other=float("-inf"), cache_modifier=".cg")
    highest = tl.max(logs, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(tl.exp2(logs - base[None, :]), 0)
    output = tl.zeros([HEADS, WIDTH], tl.float32)
    for start in range(0, splits, PARTS):
        split = start + tl.arange(0, PARTS)
        used = (split < splits)[:, None] & (head < GROUP)[None, :]
        slot = (unit * SPLITS + split)[:, None] * GROUP + head[None, :]
        log = tl.load(part_log + slot, mask=used, other=float("-inf"), cache_modifier=".cg")
        at = part_out + slot[:, :, None] * WIDTH + column[None, None, :]
        part = tl.load(at, mask=used[:, :, None], other=0.0, cache_modifier=".cg")
        output += tl.sum(part * tl.exp2(log - base[None, :])[:, :, None], 0)
    return output / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit(do_not_specialize=["least"], do_not_specialize_on_alignment=["k_scale", "v_scale"])
def decode_splits(
    out, q, k_cache, v_cache, page_table, row_slot, kv_len, k_scale, v_scale,
    part_out, part_log, arrivals, least, slots, table_width, pages, scale_log2,
    out_stride_t, out_stride_h, q_stride_t, q_stride_h, table_stride,
    k_stride_p, k_stride_h, k_stride_t, v_stride_p, v_stride_h, v_stride_t,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HEADS: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr, PTX: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One split of one row and KV head."""
    unit, split = tl.program_id(0), tl.program_id(1)
    row, head = unit // KV_HEADS, unit % KV_HEADS
    group_row = tl.arange(0, BLOCK_M)
    used = group_row < GROUP
    at = row.to(tl.int64) * q_stride_t + (head * GROUP + group_row) * q_stride_h
    at = at[:, None] + tl.arange(0, WIDTH)[None, :]
    wait_for_inputs(PDL)
    length = tl.minimum(tl.maximum(tl.load(kv_len + row), 0), table_width * PAGE)
    slot = tl.load(row_slot + row)
    slot = tl.minimum(tl.maximum(slot, 0), slots - 1).to(tl.int64)
    first, count = row_blocks(length, WINDOW, BLOCK_N)
    each = tl.cdiv(count, tl.minimum(tl.maximum(count // least, 1), SPLITS))
    splits = tl.cdiv(count, each)
    if split >= splits:
        return
    score_scale, value_scale = read_scales(k_scale, v_scale, scale_log2)
    queries = tl.load(q + at, mask=used[:, None], other=0.0)
    if k_scale is not None:
        queries = queries.to(tl.float16)
    begin = first + split * each
    highest, weight, output = attend_blocks(
        queries, k_cache, v_cache, page_table + slot * table_stride, table_width, pages,
        head.to(tl.int64), length, begin, tl.minimum(begin + each, first + count), score_scale,
        k_stride_p, k_stride_h, k_stride_t, v_stride_p, v_stride_h, v_stride_t,
        WINDOW, WIDTH, PAGE, BLOCK_M, BLOCK_N, PTX,
    )  # fmt: skip
    start_dependents(PDL)
    output = output * (value_scale / tl.where(weight == 0.0, 1.0, weight))[:, None]
    target = out + row.to(tl.int64) * out_stride_t + head * GROUP * out_stride_h
    if splits == 1:
        store_heads(target, output, out_stride_h, GROUP, WIDTH, BLOCK_M)
        return
    part = (unit * SPLITS + split) * GROUP
    tl.store(part_log + part + group_row, highest + tl.log2(weight), mask=used)
    store_heads(part_out + part * WIDTH, output, WIDTH, GROUP, WIDTH, BLOCK_M)
    tl.debug_barrier()  # all threads' parts before the arrival that publishes them
    if tl.atomic_add(arrivals + unit, 1, sem="acq_rel") == splits - 1:
        whole = add_splits(part_out, part_log, unit, splits, GROUP, WIDTH, HEADS, SPLITS, PARTS)
        store_heads(target, whole, out_stride_h, GROUP, WIDTH, HEADS)
        tl.store(arrivals + unit, 0)  # ready for the next launch


@dataclass(frozen=True)
class Tile:
    """KV tokens a block, warps, blocks in flight, most splits of a row, fewest blocks of one."""

    block_n: int
    warps: int
    stages: int
    splits: int
    least: int


def choose_tile(head_dim: int, itemsize: int, units: int, pairs: int) -> Tile:
    """As measured on an H200, where a block costs latencies more than bytes.

    Warps of one program wait for each other twice a block, so few of them and more programs beat
    one large program. Splits are for as many programs as run at a time; a few more would run behind
    all others.
    """
    few, wide = pairs <= FEW_PAIRS, max(1, head_dim // 128)
    if itemsize == 1:
        block_n, warps, programs = 64, 2 * wide, 4
    elif itemsize == 2 and few:
        block_n, warps, programs = 32, wide, 4
    else:
        block_n, warps, programs = max(16, min(64, 16384 // (head_dim * itemsize))), 4, 2
    at_a_time = units * programs
    splits = max(SPLITS_ANYWAY, min(MOST_SPLITS, at_a_time // pairs))
    splits = 1 << (splits.bit_length() - 1)  # rounded down to a power of two
    least = max(FEWEST_TOKENS // block_n, SHORT_CONTEXT // block_n * pairs // at_a_time)
    return Tile(block_n, warps, stages=2 if itemsize > 2 else 3, splits=splits, least=least)


@cache
def split_scratch(device: torch.device, units: int, splits: int, group: int, width: int) -> Scratch:
    """Scratch that all layers share: launches of one stream follow each other.

    Made at the first call of a shape, which a capture therefore warms up with.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "attention_decode@1:split meets a new batch shape inside a graph capture; "
            "run the work once before capturing it"
        )
    parts = units * splits * group
    return Scratch(
        out=torch.empty((parts, width), dtype=torch.float32, device=device),
        log=torch.empty((parts,), dtype=torch.float32, device=device),
        arrivals=torch.zeros((units,), dtype=torch.int32, device=device),
    )


def attention_split(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_slot: torch.Tensor,
    kv_len: torch.Tensor,
    scale: float,
    scales: tuple[torch.Tensor, torch.Tensor] | tuple[None, None] = (None, None),
    *,
    window: int | None,
    units: int,
    tile: Tile | None = None,
    pdl: bool = False,
    ptx: bool = False,
) -> torch.Tensor:
    """As ``attention_decode``: one query per row over its pages."""
    rows, heads, width = q.shape
    pdl = pdl and rows > DEPENDENT_ROWS
    out = torch.empty((rows, heads, width), dtype=q.dtype, device=q.device)
    if not rows:
        return out
    kv_heads, page = k_cache.shape[1], k_cache.shape[2]
    group, pairs = heads // kv_heads, rows * kv_heads
    heads_pad = triton.next_power_of_2(group)
    tile = tile or choose_tile(width, k_cache.element_size(), units, pairs)
    parts_at_once = max(1, min(tile.splits, PART_ELEMENTS * tile.warps // (heads_pad * width)))
    parts = split_scratch(q.device, triton.next_power_of_2(pairs), tile.splits, group, width)
    decode_splits[(pairs, tile.splits)](
        out, q, k_cache, v_cache, page_table, row_slot, kv_len, *scales,
        parts.out, parts.log, parts.arrivals, tile.least,
        page_table.shape[0], page_table.shape[1], k_cache.shape[0], scale * LOG2_E,
        out.stride(0), out.stride(1), q.stride(0), q.stride(1), page_table.stride(0),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        KV_HEADS=kv_heads, GROUP=group, WIDTH=width, PAGE=page, WINDOW=window or 0,
        BLOCK_M=max(MIN_DOT_ROWS, heads_pad), BLOCK_N=tile.block_n, HEADS=heads_pad,
        SPLITS=tile.splits, PARTS=parts_at_once, PTX=ptx, PDL=pdl,
        num_warps=tile.warps, num_stages=tile.stages, **options(pdl),
    )  # fmt: skip
    return out


def bind(site: CallSite) -> Callable[..., torch.Tensor]:
    attend = partial(attention_split, units=site.device.units, ptx=has_ptx(site))
    return bind_call(site, attend)
