# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""attention_decode@1 and attention_decode_fp8@1: paged KV, the work cut evenly over the GPU.

Split-KV decoding: Dao et al., Flash-Decoding, 2023; even cuts across rows of any length: Osama et
al., Stream-K, 2023, arXiv:2301.03598. Every program reads all row lengths, lays the KV blocks of
all (row, KV head) units end to end, and takes an equal share. So nothing about lengths is known on
the host, and one captured launch serves every mix:

    unit     |--- row 0 head 0 ---|--- row 0 head 1 ---|-- row 1 head 0 --|...
    program  |    0    |    1    |    2    |    3    |    4    |...

A unit that crosses programs leaves one partial result per program; whoever arrives last adds them
up in program order, so the sum does not depend on who that is.

Keys and values of eight bits become fp16 in registers, which holds every e4m3 number.
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

from tokenspeed_nvidia.kernels.e4m3 import has_ptx, widen
from tokenspeed_nvidia.kernels.pdl import has_pdl, options, start_dependents, wait_for_inputs

LOG2_E = 1.4426950408889634
MIN_DOT_ROWS = 16
"""Rows of the smallest matrix instruction; the query heads of a KV head fill some of them."""

MOST_PARTS = 8
PART_ELEMENTS = 2048
"""Parts of a unit that are read at a time, and their elements for each warp, 64 to a thread; more
would take the registers of the main loop."""


@triton.jit
def row_blocks(length, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """First KV block of a row and number of blocks; a dead row has one, all masked."""
    first = length * 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0) // BLOCK_N
    return first, tl.maximum(tl.cdiv(length, BLOCK_N) - first, 1)


@triton.jit
def find_share(
    kv_len, rows, tokens, program, KV_HEADS: tl.constexpr, WINDOW: tl.constexpr,
    ROWS_PAD: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Blocks per program, those [position, stop) of this one, the row of the first, its begin."""
    each = tl.arange(0, ROWS_PAD)
    lengths = tl.load(kv_len + each, mask=each < rows, other=0)
    lengths = tl.minimum(tl.maximum(lengths, 0), tokens)
    _, counts = row_blocks(lengths, WINDOW, BLOCK_N)
    counts = tl.where(each < rows, counts, 0) * KV_HEADS
    ends = tl.cumsum(counts, 0)
    total = tl.sum(counts, 0)
    share = tl.cdiv(total, tl.num_programs(0))
    position = tl.minimum(program * share, total)
    row = tl.sum((ends <= position).to(tl.int32), 0)
    row_begin = tl.max(tl.where(ends <= position, ends, 0), 0)
    return share, position, tl.minimum(position + share, total), row, row_begin


@triton.jit
def load_pages(table, token, table_width, pages, PAGE: tl.constexpr):
    """The page of each token; any index is safe. Loaded a block ahead, so that keys and values,
    whose addresses it gives, can be fetched several blocks ahead."""
    page = tl.load(table + tl.minimum(token // PAGE, table_width - 1))
    return tl.minimum(tl.maximum(page, 0), pages - 1).to(tl.int64)


@triton.jit
def attend_blocks(
    queries, k_cache, v_cache, table, table_width, pages, head, length, first, last, scale_log2,
    k_stride_p, k_stride_h, k_stride_t, v_stride_p, v_stride_h, v_stride_t,
    WINDOW: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PTX: tl.constexpr,
    line_length=None, LINE_WINDOW: tl.constexpr = 0,
):  # fmt: skip
    """Online softmax over the KV blocks [first, last) of one unit: maximum, sum and output.

    Products are of the dtype of ``queries``. Its lines see ``length`` tokens and WINDOW of them,
    unless each has a ``line_length`` of its own, and LINE_WINDOW.
    """
    column = tl.arange(0, WIDTH)
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    output = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    page = load_pages(table, first * BLOCK_N + tl.arange(0, BLOCK_N), table_width, pages, PAGE)
    for block in range(first, last):
        token = block * BLOCK_N + tl.arange(0, BLOCK_N)
        seen = token < length
        if WINDOW > 0:
            seen = seen & (token >= length - WINDOW)
        key_at = page * k_stride_p + head * k_stride_h + (token % PAGE) * k_stride_t
        value_at = page * v_stride_p + head * v_stride_h + (token % PAGE) * v_stride_t
        page = load_pages(table, token + BLOCK_N, table_width, pages, PAGE)
        keys = tl.load(k_cache + key_at[:, None] + column[None, :], mask=seen[:, None], other=0.0)
        keys = tl.trans(keys.to(queries.dtype))
        scores = tl.dot(queries, keys, input_precision="ieee") * scale_log2
        if line_length is None:
            scores = tl.where(seen[None, :], scores, float("-inf"))
        else:
            of_line = token[None, :] < line_length[:, None]
            if LINE_WINDOW > 0:
                of_line = of_line & (token[None, :] >= line_length[:, None] - LINE_WINDOW)
            scores = tl.where(of_line, scores, float("-inf"))
        raised = tl.maximum(highest, tl.max(scores, axis=1))
        base = tl.where(raised == float("-inf"), 0.0, raised)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(weights, axis=1)
        values = tl.load(
            v_cache + value_at[:, None] + column[None, :], mask=seen[:, None], other=0.0
        )
        output = output * shrink[:, None]
        if v_cache.dtype.element_ty.is_fp8():
            values = widen(values, PTX)
        output += tl.dot(weights.to(queries.dtype), values, input_precision="ieee")
        highest = raised
    return highest, total, output


@triton.jit
def read_scales(k_scale, v_scale, scale_log2):
    """Factors of the scores and of the output; a cache that is not of eight bits has no scales."""
    value_scale = 1.0
    if k_scale is not None:
        scale_log2 *= tl.load(k_scale)
        value_scale = tl.load(v_scale)
    return scale_log2, value_scale


@triton.jit
def store_heads(
    target, values, stride, GROUP: tl.constexpr, WIDTH: tl.constexpr, LINES: tl.constexpr
):
    """The first GROUP of LINES lines, one per query head, ``stride`` apart."""
    line = tl.arange(0, LINES)[:, None]
    at = target + line * stride + tl.arange(0, WIDTH)[None, :]
    tl.store(at, values.to(target.dtype.element_ty), mask=line < GROUP)


@triton.jit
def add_parts(
    part_out, part_log, first, last,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The output [HEADS, WIDTH] of a unit from the parts that the programs first..last left.

    PARTS parts are read at a time: one after the other, their latencies would add up.
    """
    head = tl.arange(0, HEADS)
    column = tl.arange(0, WIDTH)
    highest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    output = tl.zeros([HEADS, WIDTH], tl.float32)
    for start in range(first, last + 1, PARTS):
        program = start + tl.arange(0, PARTS)
        used = (program <= last)[:, None] & (head < GROUP)[None, :]
        slot = (2 * program + (program == first).to(tl.int32)) * GROUP
        slot = slot[:, None] + head[None, :]
        # .cg: other multiprocessors wrote this, so not from the cache of this one
        log = tl.load(part_log + slot, mask=used, other=float("-inf"), cache_modifier=".cg")
        at = part_out + slot[:, :, None] * WIDTH + column[None, None, :]
        part = tl.load(at, mask=used[:, :, None], other=0.0, cache_modifier=".cg")
        raised = tl.maximum(highest, tl.max(log, 0))
        base = tl.where(raised == float("-inf"), 0.0, raised)
        shrink = tl.exp2(highest - base)
        weight = tl.exp2(log - base[None, :])
        total = total * shrink + tl.sum(weight, 0)
        output = output * shrink[:, None] + tl.sum(part * weight[:, :, None], 0)
        highest = raised
    return output / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["k_scale", "v_scale"])
def decode_units(
    out, q, k_cache, v_cache, page_table, row_slot, kv_len, k_scale, v_scale,
    part_out, part_log, arrivals, rows, slots, table_width, pages, scale_log2,
    out_stride_t, out_stride_h, q_stride_t, q_stride_h, table_stride,
    k_stride_p, k_stride_h, k_stride_t, v_stride_p, v_stride_h, v_stride_t,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, ROWS_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HEADS: tl.constexpr, PARTS: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program attends to an equal share of all KV blocks."""
    wait_for_inputs(PDL)
    program = tl.program_id(0)
    score_scale, value_scale = read_scales(k_scale, v_scale, scale_log2)
    tokens = table_width * PAGE
    share, position, stop, row, row_begin = find_share(
        kv_len, rows, tokens, program, KV_HEADS, WINDOW, ROWS_PAD, BLOCK_N
    )
    group_row = tl.arange(0, BLOCK_M)
    column = tl.arange(0, WIDTH)
    used = group_row < GROUP
    while position < stop:
        length = tl.minimum(tl.maximum(tl.load(kv_len + row), 0), tokens)
        slot = tl.load(row_slot + row)
        slot = tl.minimum(tl.maximum(slot, 0), slots - 1).to(tl.int64)
        first, count = row_blocks(length, WINDOW, BLOCK_N)
        head = (position - row_begin) // count
        unit_begin = row_begin + head * count
        unit_end = unit_begin + count
        until = tl.minimum(stop, unit_end)
        query_row = head * GROUP + group_row
        at = row.to(tl.int64) * q_stride_t + query_row * q_stride_h
        queries = tl.load(q + at[:, None] + column[None, :], mask=used[:, None], other=0.0)
        if k_scale is not None:
            queries = queries.to(tl.float16)
        highest, weight, output = attend_blocks(
            queries, k_cache, v_cache, page_table + slot * table_stride, table_width, pages,
            head.to(tl.int64), length, first + position - unit_begin, first + until - unit_begin,
            score_scale, k_stride_p, k_stride_h, k_stride_t, v_stride_p, v_stride_h, v_stride_t,
            WINDOW, WIDTH, PAGE, BLOCK_M, BLOCK_N, PTX,
        )  # fmt: skip
        output = output * (value_scale / tl.where(weight == 0.0, 1.0, weight))[:, None]
        first_program = unit_begin // share
        last_program = (unit_end - 1) // share
        target = out + row.to(tl.int64) * out_stride_t + head * GROUP * out_stride_h
        if first_program == last_program:
            store_heads(target, output, out_stride_h, GROUP, WIDTH, BLOCK_M)
        else:
            part = 2 * program + (program == first_program).to(tl.int32)
            tl.store(part_log + part * GROUP + group_row, highest + tl.log2(weight), mask=used)
            store_heads(part_out + part * GROUP * WIDTH, output, WIDTH, GROUP, WIDTH, BLOCK_M)
            tl.debug_barrier()  # all threads' parts before the arrival that publishes them
            counter = arrivals + row * KV_HEADS + head
            arrived = tl.atomic_add(counter, 1, sem="acq_rel")
            if arrived == last_program - first_program:
                whole = add_parts(
                    part_out, part_log, first_program, last_program, GROUP, WIDTH, HEADS, PARTS
                )
                store_heads(target, whole, out_stride_h, GROUP, WIDTH, HEADS)
                tl.store(counter, 0)  # ready for the next launch
        position = until
        ended = until == row_begin + count * KV_HEADS
        row = tl.where(ended, row + 1, row)
        row_begin = tl.where(ended, until, row_begin)
    start_dependents(PDL)


@dataclass(frozen=True)
class Tile:
    """Shape of one program's work: KV tokens a block, warps, blocks in flight, programs an SM."""

    block_n: int
    warps: int
    stages: int
    programs: int


def choose_tile(head_dim: int, itemsize: int) -> Tile:
    """As measured on an H200: programs of one warp, which waits for no other, and many of them."""
    if itemsize > 2:
        return Tile(max(16, min(64, 4096 // head_dim)), warps=4, stages=3, programs=2)
    return Tile(32, max(1, head_dim // 128), stages=3, programs=4 if itemsize == 2 else 6)


@dataclass(frozen=True)
class Scratch:
    """Partial results: two per program, and the arrival counters, which every launch leaves 0."""

    out: torch.Tensor
    log: torch.Tensor
    arrivals: torch.Tensor


@cache
def scratch(device: torch.device, programs: int, group: int, width: int, units: int) -> Scratch:
    """Scratch that all layers share: launches of one stream follow each other.

    Made at the first call of a shape, which a capture therefore warms up with.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "attention_decode@1:triton meets a new batch shape inside a graph capture; "
            "run the work once before capturing it"
        )
    parts = 2 * programs * group
    return Scratch(
        out=torch.empty((parts, width), dtype=torch.float32, device=device),
        log=torch.empty((parts,), dtype=torch.float32, device=device),
        arrivals=torch.zeros((units,), dtype=torch.int32, device=device),
    )


def parts_at_once(programs: int, pairs: int, elements: int, warps: int) -> int:
    """More where units are cut into more parts; all are held in registers."""
    most = MOST_PARTS if programs > pairs else MOST_PARTS // 2
    return max(1, min(most, PART_ELEMENTS * warps // elements))


def attention_decode(
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
    """One query per row over its pages.

    ``units`` is the number of multiprocessors, ``scales`` those of keys and values of eight bits;
    ``ptx``: see ``widen``.
    """
    rows, heads, width = q.shape
    out = torch.empty((rows, heads, width), dtype=q.dtype, device=q.device)
    if not rows:
        return out
    kv_heads, page = k_cache.shape[1], k_cache.shape[2]
    group = heads // kv_heads
    heads_pad = triton.next_power_of_2(group)
    rows_pad = triton.next_power_of_2(rows)
    pairs = rows_pad * kv_heads
    tile = tile or choose_tile(width, k_cache.element_size())
    table_width = page_table.shape[1]
    blocks = rows * kv_heads * triton.cdiv(table_width * page, tile.block_n)
    programs = min(units * tile.programs, blocks)
    parts = scratch(q.device, units * tile.programs, group, width, pairs)
    decode_units[(programs,)](
        out, q, k_cache, v_cache, page_table, row_slot, kv_len, *scales,
        parts.out, parts.log, parts.arrivals,
        rows, page_table.shape[0], table_width, k_cache.shape[0], scale * LOG2_E,
        out.stride(0), out.stride(1), q.stride(0), q.stride(1), page_table.stride(0),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        KV_HEADS=kv_heads, GROUP=group, WIDTH=width, PAGE=page, WINDOW=window or 0,
        ROWS_PAD=rows_pad, BLOCK_M=max(MIN_DOT_ROWS, heads_pad),
        BLOCK_N=tile.block_n, HEADS=heads_pad,
        PARTS=parts_at_once(units * tile.programs, pairs, heads_pad * width, tile.warps),
        PTX=ptx, PDL=pdl,
        num_warps=tile.warps, num_stages=tile.stages, **options(pdl),
    )  # fmt: skip
    return out


def bind(site: CallSite) -> Callable[..., torch.Tensor]:
    attend = partial(attention_decode, units=site.device.units, ptx=has_ptx(site))
    return bind_call(site, attend)


def bind_call(site: CallSite, attend: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``attend`` with what is fixed at a site, as its op calls it."""
    window = site.traits["window"]
    assert window is None or isinstance(window, int)
    fixed = partial(attend, window=window, pdl=has_pdl(site))
    if "_fp8@" not in site.op:
        return fixed

    def call_fp8(*args: Any) -> torch.Tensor:
        *tensors, k_scale, v_scale, scale = args
        return fixed(*tensors, scale, (k_scale, v_scale))

    return call_fp8
