# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""linear@1 and add_norm_linear@1 for few rows: what counts is how fast weights are read.

    1 row      a program multiplies one weight row by x, its first columns loaded before x is there
    2-64 rows  a program multiplies 64 weight rows by all of x on the matrix units. Weights are the
               first operand, so that their rows fill the instruction's 64 lines; the few rows of x
               are its columns. Where that gives too few programs for the GPU, K is split, and the
               last program to arrive adds the parts up in a fixed order.

A gated layer (gate, then up) takes rows of both halves into one program, which then holds all that
silu(gate) * up needs.
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

from tokenspeed_nvidia.kernels.activation import gated
from tokenspeed_nvidia.kernels.norm import add_rms_norm_into
from tokenspeed_nvidia.kernels.pdl import has_pdl, options, start_dependents, wait_for_inputs

VECTOR_ROWS = 1
"""Up to so many rows the matrix units gain nothing."""

CHUNK = 2048
"""Columns of a weight row that a program holds at a time: 32 bytes a thread."""

LINES = 64
"""Weight rows of a tile: as many as the matrix instruction takes."""

BLOCK_K = 128

H200_UNITS = 132

FEWEST_COLUMNS = 16
"""Rows of x in a tile, at least: with 8, Triton falls back to the matrix instruction of a warp."""


@triton.jit
def load_row(weight, start, width, CHUNK: tl.constexpr, EVEN: tl.constexpr):
    """CHUNK columns of a weight row. Every weight is read once: it need not stay in the cache.

    As they are: to convert them before ``wait_for_inputs`` would be to wait for them there.
    """
    column = start + tl.arange(0, CHUNK)
    if EVEN:
        return tl.load(weight + column, eviction_policy="evict_first")
    return tl.load(weight + column, mask=column < width, other=0.0, eviction_policy="evict_first")


@triton.jit
def multiply_row(
    out, x, weight, bias, rows, n, x_stride, w_stride, out_stride,
    K: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, EVEN: tl.constexpr,
    HAS_BIAS: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One output feature for all rows; a gated one from rows ``program`` and ``program + n``."""
    start_dependents(PDL)
    feature = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    first = load_row(weight + feature * w_stride, 0, K, CHUNK, EVEN)
    second = first
    if GATED:
        second = load_row(weight + (feature + n) * w_stride, 0, K, CHUNK, EVEN)
    wait_for_inputs(PDL)
    sums = tl.zeros([ROWS, CHUNK], tl.float32)
    gates = tl.zeros([ROWS, CHUNK], tl.float32)
    for start in tl.static_range(0, K, CHUNK):
        if start > 0:
            first = load_row(weight + feature * w_stride, start, K, CHUNK, EVEN)
            if GATED:
                second = load_row(weight + (feature + n) * w_stride, start, K, CHUNK, EVEN)
        column = start + tl.arange(0, CHUNK)
        inside = (row < rows)[:, None] & (column < K)[None, :]
        at = x + row[:, None] * x_stride + column[None, :]
        values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        sums += values * first.to(tl.float32)[None, :]
        if GATED:
            gates += values * second.to(tl.float32)[None, :]
    result = tl.sum(sums, 1)
    if HAS_BIAS:
        result += tl.load(bias + feature).to(tl.float32)
    if GATED:
        up = tl.sum(gates, 1)
        if HAS_BIAS:
            up += tl.load(bias + feature + n).to(tl.float32)
        result = gated(result, up)
    tl.store(out + row * out_stride + feature, result.to(out.dtype.element_ty), mask=row < rows)


@triton.jit
def weight_rows(tile, n, LINES: tl.constexpr, USED: tl.constexpr, GATED: tl.constexpr):
    """The weight rows of a tile; half of a gated one are gates, the other half their ups.

    A tile that is not gated has USED of LINES rows.
    """
    line = tl.arange(0, LINES)
    if GATED:
        half: tl.constexpr = LINES // 2
        return tile * half + line % half + (line // half) * n, tile * half + line % half < n
    return tile * USED + line, (line < USED) & (tile * USED + line < n)


@triton.jit
def multiply_tile(
    x, weight, at, used, rows, x_stride, w_stride, begin, end,
    K: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """[LINES, ROWS]: the weight rows ``at`` times x over the columns [begin, end)."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_K)
    weights = weight + at[:, None].to(tl.int64) * w_stride + column[None, :]
    values = x + row[None, :] * x_stride + column[:, None]
    total = tl.zeros([LINES, ROWS], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        if EVEN:
            w = tl.load(
                weights + start, mask=used[:, None], other=0.0, eviction_policy="evict_first"
            )
            v = tl.load(values + start, mask=(row < rows)[None, :], other=0.0)
        else:
            inside = start + column < K
            w = tl.load(
                weights + start, mask=used[:, None] & inside[None, :], other=0.0,
                eviction_policy="evict_first",
            )  # fmt: skip
            v = tl.load(values + start, mask=(row < rows)[None, :] & inside[:, None], other=0.0)
        total = tl.dot(w, v, total)
    return total


@triton.jit
def store_tile(
    out, total, bias, tile, rows, n, out_stride,
    ROWS: tl.constexpr, LINES: tl.constexpr, USED: tl.constexpr, HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
):  # fmt: skip
    """Bias, gate, and the outputs of a tile."""
    row = tl.arange(0, ROWS)
    if HAS_BIAS:
        at, used = weight_rows(tile, n, LINES, USED, GATED)
        total += tl.load(bias + at, mask=used, other=0.0).to(tl.float32)[:, None]
    if GATED:
        half: tl.constexpr = LINES // 2
        halves = tl.permute(tl.reshape(total, [2, half, ROWS]), [1, 2, 0])
        gate, up = tl.split(halves)
        feature = tile * half + tl.arange(0, half)
        used = feature < n
        result = gated(gate, up)
    else:
        feature, used = weight_rows(tile, n, LINES, USED, False)
        result = total
    inside = used[:, None] & (row < rows)[None, :]
    at = out + row[None, :] * out_stride + feature[:, None]
    tl.store(at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def finish_tile(
    out, total, bias, parts, arrivals, tile, part, rows, n, out_stride,
    ROWS: tl.constexpr, LINES: tl.constexpr, USED: tl.constexpr, SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """The outputs of a tile, once the sums over all SPLIT shares of K are there."""
    if SPLIT == 1:
        store_tile(out, total, bias, tile, rows, n, out_stride, ROWS, LINES, USED, HAS_BIAS, GATED)
    else:
        place = tl.arange(0, LINES)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        place += tile * SPLIT * LINES * ROWS
        tl.store(parts + part * LINES * ROWS + place, total)
        tl.debug_barrier()  # all threads' parts before the arrival that publishes them
        if tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == SPLIT - 1:
            total = tl.zeros([LINES, ROWS], tl.float32)
            for other in tl.static_range(SPLIT):
                # .cg: other multiprocessors wrote this, so not from the cache of this one
                total += tl.load(parts + other * LINES * ROWS + place, cache_modifier=".cg")
            store_tile(
                out, total, bias, tile, rows, n, out_stride, ROWS, LINES, USED, HAS_BIAS, GATED
            )
            tl.store(arrivals + tile, 0)  # ready for the next launch


@triton.jit
def multiply_rows(
    out, x, weight, bias, parts, arrivals, rows, n, x_stride, w_stride, out_stride, share,
    K: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr, USED: tl.constexpr,
    BLOCK_K: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    HAS_BIAS: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of weight rows over one of SPLIT equal shares of K."""
    tile, part = tl.program_id(0), tl.program_id(1)
    at, used = weight_rows(tile, n, LINES, USED, GATED)
    wait_for_inputs(PDL)
    total = multiply_tile(
        x, weight, at, used, rows, x_stride, w_stride,
        part * share, tl.minimum((part + 1) * share, K),
        K, ROWS, LINES, BLOCK_K, EVEN, STAGES,
    )  # fmt: skip
    start_dependents(PDL)
    finish_tile(
        out, total, bias, parts, arrivals, tile, part, rows, n, out_stride,
        ROWS, LINES, USED, SPLIT, HAS_BIAS, GATED,
    )  # fmt: skip


@dataclass(frozen=True)
class Scratch:
    """Partial sums, and arrival counters, which every launch leaves 0."""

    parts: torch.Tensor
    arrivals: torch.Tensor


@cache
def scratch(device: torch.device, parts: int, tiles: int) -> Scratch:
    """Scratch that all sites of equal sizes share: launches of one stream follow each other.

    Made at the first call of a shape, which a capture therefore warms up with.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "linear@1:few_rows meets a new shape inside a graph capture; "
            "run the work once before capturing it"
        )
    return Scratch(
        parts=torch.empty((parts,), dtype=torch.float32, device=device),
        arrivals=torch.zeros((tiles,), dtype=torch.int32, device=device),
    )


@dataclass(frozen=True)
class Tiling:
    """How the tiles of a layer are cut, as measured on an H200.

    Attributes:
        used: weight rows of a tile, of LINES that it has room for; all, where it is gated.
        split: shares of K.
        stages: blocks of weights in flight.
        warps: of a program.
    """

    used: int
    split: int
    stages: int
    warps: int = 4


def choose_tiling(rows: int, n: int, k: int, gate: bool, units: int) -> Tiling:
    """One equal tile for each multiprocessor, where that leaves a tile half full at least.

    Smaller layers split K, if the shares stay long; larger ones have several full tiles for each.
    """
    stages = 4 if gate or rows > 32 else 6
    if gate or n > LINES * units:
        return Tiling(LINES, 1, stages)
    used = max(LINES // 2, triton.cdiv(triton.cdiv(n, units), 16) * 16)
    split = 2 if triton.cdiv(n, used) < 80 and k >= 2 * 2048 else 1
    return Tiling(used, split, stages)


def few_rows_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    gate: bool = False,
    pdl: bool = False,
    units: int = H200_UNITS,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """x [T, K] times weight [N, K]; with ``gate``, silu of the first N/2 features times the others.

    Right for any number of rows, fast up to 64. ``units`` is the number of multiprocessors.
    """
    rows, k = x.shape
    n = weight.shape[0] // 2 if gate else weight.shape[0]
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    if x.stride(1) != 1:
        x = x.contiguous()
    strides = (x.stride(0), weight.stride(0))
    shared = {"K": k, "HAS_BIAS": bias is not None, "GATED": gate, "PDL": pdl, **options(pdl)}
    if rows <= VECTOR_ROWS:
        chunk = min(CHUNK, triton.next_power_of_2(k))
        multiply_row[(n,)](
            out, x, weight, bias, rows, n, *strides, n,
            ROWS=rows, CHUNK=chunk, EVEN=k % chunk == 0, num_warps=4, **shared,
        )  # fmt: skip
        return out
    rows_pad = max(FEWEST_COLUMNS, triton.next_power_of_2(rows))
    tiling = tiling or choose_tiling(rows, n, k, gate, units)
    tiles = triton.cdiv(n, LINES // 2 if gate else tiling.used)
    share = triton.cdiv(triton.cdiv(k, tiling.split), BLOCK_K) * BLOCK_K
    held = tiles * tiling.split * LINES * rows_pad if tiling.split > 1 else 1
    parts = scratch(x.device, held, tiles)
    multiply_rows[(tiles, tiling.split)](
        out, x, weight, bias, parts.parts, parts.arrivals, rows, n, *strides, n, share,
        ROWS=rows_pad, LINES=LINES, USED=tiling.used, BLOCK_K=BLOCK_K, SPLIT=tiling.split,
        EVEN=k % BLOCK_K == 0, STAGES=tiling.stages, num_warps=tiling.warps, **shared,
    )  # fmt: skip
    return out


def bind_linear(site: CallSite) -> Callable[..., torch.Tensor]:
    pdl, units = has_pdl(site), site.device.units

    def call(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return few_rows_linear(x, weight, bias, pdl=pdl, units=units)

    return call


def bind_add_norm_linear(site: CallSite) -> Callable[..., torch.Tensor]:
    """Two launches: the norm in the product would be computed again by every program."""
    pdl, units, gate = has_pdl(site), site.device.units, bool(site.traits["gated"])

    def call(
        x: torch.Tensor,
        residual: torch.Tensor,
        summed: torch.Tensor,
        norm_weight: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        hidden = add_rms_norm_into(summed, x, residual, norm_weight, eps, pdl=pdl)
        return few_rows_linear(hidden, weight, bias, gate=gate, pdl=pdl, units=units)

    return call
