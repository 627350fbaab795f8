# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""attention_verify@1 and attention_verify_fp8@1: the queries of a run read its pages together.

The even cuts of ``attention_decode``, with runs of rows in the place of rows: a run is one slot's
rows, each a token longer than the one in front. Which rows are a run is found on the device, from
slots and lengths, so that one captured launch serves rows with any number of guesses:

    row      slot 5, 90 | slot 5, 91 | slot 5, 92 | slot 2, 40 | slot 7, 11 | slot 7, 12 |
    run      |------------- 3 queries ------------|- 1 query --|------ 2 queries ------|

A unit is one (run, KV head). Its lines are the queries of the run times the query heads of the KV
head, which fill matrix instructions that one query leaves mostly empty.
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

from tokenspeed_nvidia.kernels.attention_decode import (
    LOG2_E,
    MIN_DOT_ROWS,
    Tile,
    add_parts,
    attend_blocks,
    bind_call,
    parts_at_once,
    read_scales,
    row_blocks,
    scratch,
)
from tokenspeed_nvidia.kernels.e4m3 import has_ptx
from tokenspeed_nvidia.kernels.pdl import options, start_dependents, wait_for_inputs

REGISTER_WARPS = 8

PARTS_OF_A_UNIT = tl.constexpr(16)
"""At most: whoever arrives last reads them all, and of many lines each part is as large as blocks
of keys. With few runs, that took longer than the blocks did."""


@triton.jit
def find_share_of_runs(
    row_slot, kv_len, rows, tokens, program, KV_HEADS: tl.constexpr, REACH: tl.constexpr,
    ROWS_PAD: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Whether each row is the last of its run, where the run's work stands; blocks per program,
    those [position, stop) of this one, the row of the first, its begin."""
    each = tl.arange(0, ROWS_PAD)
    there, followed = each < rows, each + 1 < rows
    length = tl.load(kv_len + each, mask=there, other=0)
    slot = tl.load(row_slot + each, mask=there, other=-1)
    next_length = tl.load(kv_len + each + 1, mask=followed, other=0)
    next_slot = tl.load(row_slot + each + 1, mask=followed, other=-1)
    goes_on = followed & (next_slot == slot) & (next_length == length + 1)
    last = there & (goes_on == 0)
    _, counts = row_blocks(tl.minimum(tl.maximum(length, 0), tokens), REACH, BLOCK_N)
    counts = tl.where(last, counts, 0)
    longest = tl.max(counts, 0)
    ends = tl.cumsum(counts * KV_HEADS, 0)
    total = tl.sum(counts, 0) * KV_HEADS
    share = tl.maximum(tl.cdiv(total, tl.num_programs(0)), tl.cdiv(longest, PARTS_OF_A_UNIT))
    position = tl.minimum(program * share, total)
    row = tl.sum((ends <= position).to(tl.int32), 0)
    row_begin = tl.max(tl.where(ends <= position, ends, 0), 0)
    return last, share, position, tl.minimum(position + share, total), row, row_begin


@triton.jit
def locate_lines(first_row, row, head, GROUP: tl.constexpr, QUERIES: tl.constexpr,
                 LINES_PAD: tl.constexpr):  # fmt: skip
    """Of each line of a unit: its row, its query head, and whether it is one."""
    line = tl.arange(0, LINES_PAD)
    query = line // GROUP
    used = (query <= row - first_row) & (query < QUERIES)
    return first_row + query, head * GROUP + line % GROUP, used


@triton.jit
def store_lines(target, values, row, head, used, stride_t, stride_h, WIDTH: tl.constexpr):
    """Values [lines, WIDTH] of rows and heads."""
    at = row.to(tl.int64) * stride_t + head * stride_h
    at = target + at[:, None] + tl.arange(0, WIDTH)[None, :]
    tl.store(at, values.to(target.dtype.element_ty), mask=used[:, None])


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["k_scale", "v_scale"])
def verify_units(
    out, q, k_cache, v_cache, page_table, row_slot, kv_len, k_scale, v_scale,
    part_out, part_log, arrivals, rows, slots, table_width, pages, scale_log2,
    out_stride_t, out_stride_h, q_stride_t, q_stride_h, table_stride,
    k_stride_p, k_stride_h, k_stride_t, v_stride_p, v_stride_h, v_stride_t,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, REACH: tl.constexpr, ROWS_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LINES: tl.constexpr, LINES_PAD: tl.constexpr,
    PARTS: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program attends to an equal share of all KV blocks. REACH: tokens that a run sees in a
    window; 0 without one."""
    wait_for_inputs(PDL)
    program = tl.program_id(0)
    score_scale, value_scale = read_scales(k_scale, v_scale, scale_log2)
    tokens = table_width * PAGE
    last, share, position, stop, row, row_begin = find_share_of_runs(
        row_slot, kv_len, rows, tokens, program, KV_HEADS, REACH, ROWS_PAD, BLOCK_N
    )
    each, line, column = tl.arange(0, ROWS_PAD), tl.arange(0, BLOCK_M), tl.arange(0, WIDTH)
    while position < stop:
        first_row = tl.max(tl.where(last & (each < row), each + 1, 0), 0)
        length = tl.minimum(tl.maximum(tl.load(kv_len + row), 0), tokens)
        slot = tl.load(row_slot + row)
        slot = tl.minimum(tl.maximum(slot, 0), slots - 1).to(tl.int64)
        first, count = row_blocks(length, REACH, BLOCK_N)
        head = (position - row_begin) // count
        unit_begin = row_begin + head * count
        unit_end = unit_begin + count
        until = tl.minimum(stop, unit_end)
        line_row, line_head, used = locate_lines(first_row, row, head, GROUP, QUERIES, BLOCK_M)
        at = line_row.to(tl.int64) * q_stride_t + line_head * q_stride_h
        queries = tl.load(q + at[:, None] + column[None, :], mask=used[:, None], other=0.0)
        if k_scale is not None:
            queries = queries.to(tl.float16)
        highest, weight, output = attend_blocks(
            queries, k_cache, v_cache, page_table + slot * table_stride, table_width, pages,
            head.to(tl.int64), length, first + position - unit_begin, first + until - unit_begin,
            score_scale, k_stride_p, k_stride_h, k_stride_t, v_stride_p, v_stride_h, v_stride_t,
            REACH, WIDTH, PAGE, BLOCK_M, BLOCK_N, PTX,
            tl.where(used, length - (row - line_row), 0), WINDOW,
        )  # fmt: skip
        output = output * (value_scale / tl.where(weight == 0.0, 1.0, weight))[:, None]
        first_program = unit_begin // share
        last_program = (unit_end - 1) // share
        if first_program == last_program:
            store_lines(out, output, line_row, line_head, used, out_stride_t, out_stride_h, WIDTH)
        else:
            part = (2 * program + (program == first_program).to(tl.int32)) * LINES
            tl.store(part_log + part + line, highest + tl.log2(weight), mask=used)
            store_lines(part_out + part * WIDTH, output, line, 0, used, WIDTH, 0, WIDTH)
            tl.debug_barrier()  # all threads' parts before the arrival that publishes them
            counter = arrivals + row * KV_HEADS + head
            arrived = tl.atomic_add(counter, 1, sem="acq_rel")
            if arrived == last_program - first_program:
                whole = add_parts(
                    part_out, part_log, first_program, last_program, LINES, WIDTH, LINES_PAD, PARTS
                )
                to_row, to_head, there = locate_lines(
                    first_row, row, head, GROUP, QUERIES, LINES_PAD
                )
                store_lines(out, whole, to_row, to_head, there, out_stride_t, out_stride_h, WIDTH)
                tl.store(counter, 0)  # ready for the next launch
        position = until
        ended = until == row_begin + count * KV_HEADS
        row = tl.where(ended, tl.min(tl.where(last & (each > row), each, ROWS_PAD), 0), row)
        row_begin = tl.where(ended, until, row_begin)
    start_dependents(PDL)


def choose_tile(head_dim: int, itemsize: int, lines: int) -> Tile:
    """A warp has the lines of one matrix instruction. Its registers hold their output, so that
    REGISTER_WARPS fill a multiprocessor; more programs than decode has would not gain."""
    if itemsize > 2:
        return Tile(max(16, min(64, 4096 // head_dim)), warps=4, stages=3, programs=2)
    warps = max(1, lines // MIN_DOT_ROWS) * max(1, head_dim // 128)
    return Tile(32, warps, stages=3, programs=max(1, min(4, REGISTER_WARPS // warps)))


def attention_verify(
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
    queries: int,
    units: int,
    tile: Tile | None = None,
    pdl: bool = False,
    ptx: bool = False,
) -> torch.Tensor:
    """As ``attention_decode``, with at most ``queries`` rows in a run."""
    rows, heads, width = q.shape
    out = torch.empty((rows, heads, width), dtype=q.dtype, device=q.device)
    if not rows:
        return out
    kv_heads, page = k_cache.shape[1], k_cache.shape[2]
    group = heads // kv_heads
    lines = group * queries
    lines_pad, rows_pad = triton.next_power_of_2(lines), triton.next_power_of_2(rows)
    pairs = rows_pad * kv_heads
    tile = tile or choose_tile(width, k_cache.element_size(), lines_pad)
    table_width = page_table.shape[1]
    blocks = rows * kv_heads * triton.cdiv(table_width * page, tile.block_n)
    programs = min(units * tile.programs, blocks)
    parts = scratch(q.device, units * tile.programs, lines, width, pairs)
    verify_units[(programs,)](
        out, q, k_cache, v_cache, page_table, row_slot, kv_len, *scales,
        parts.out, parts.log, parts.arrivals,
        rows, page_table.shape[0], table_width, k_cache.shape[0], scale * LOG2_E,
        out.stride(0), out.stride(1), q.stride(0), q.stride(1), page_table.stride(0),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        KV_HEADS=kv_heads, GROUP=group, QUERIES=queries, WIDTH=width, PAGE=page,
        WINDOW=window or 0, REACH=window + queries - 1 if window else 0, ROWS_PAD=rows_pad,
        BLOCK_M=max(MIN_DOT_ROWS, lines_pad), BLOCK_N=tile.block_n, LINES=lines,
        LINES_PAD=lines_pad,
        PARTS=parts_at_once(units * tile.programs, pairs, lines_pad * width, tile.warps),
        PTX=ptx, PDL=pdl,
        num_warps=tile.warps, num_stages=tile.stages, **options(pdl),
    )  # fmt: skip
    return out


def bind(site: CallSite) -> Callable[..., torch.Tensor]:
    queries = site.traits["queries"]
    assert isinstance(queries, int)
    attend = partial(attention_verify, queries=queries, units=site.device.units, ptx=has_ptx(site))
    return bind_call(site, attend)
