# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""linear_fp8@1 and add_norm_linear_fp8@1 for few rows: see ``few_rows``, with half the bytes.

The rows are quantised first, by a small launch of their own, which is the norm where there is one:
every program of the product needs all codes. A product of 128 columns, one group, is of codes
alone; both scales are multiplied in behind it.
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

from tokenspeed_nvidia.kernels.activation import gated
from tokenspeed_nvidia.kernels.e4m3 import GROUP
from tokenspeed_nvidia.kernels.few_rows import (
    FEWEST_COLUMNS,
    LINES,
    Tiling,
    finish_tile,
    scratch,
    weight_rows,
)
from tokenspeed_nvidia.kernels.fp8_quantize import launch_add_norm_quantize, store_codes
from tokenspeed_nvidia.kernels.pdl import has_pdl, options, start_dependents, wait_for_inputs

VECTOR_ROWS = 1
CHUNK = 4096
QUANTIZED_AT_ONCE = 2048


@dataclass(frozen=True)
class Quantized:
    """Codes [T, K] and their scales [T, groups]."""

    codes: torch.Tensor
    scales: torch.Tensor


@triton.jit
def quantize_row(
    codes, scales, x, x_stride, groups,
    K: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """COLUMNS columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * COLUMNS
    column = start + tl.arange(0, COLUMNS)
    wait_for_inputs(PDL)
    value = tl.load(x + row * x_stride + column, mask=column < K, other=0.0).to(tl.float32)
    start_dependents(PDL)
    store_codes(codes, scales + row * groups, 1, value, row, start, K, COLUMNS)


@triton.jit
def load_codes(weight, start, width, CHUNK: tl.constexpr, EVEN: tl.constexpr):
    """CHUNK codes of a weight row, each read once."""
    column = start + tl.arange(0, CHUNK)
    if EVEN:
        return tl.load(weight + column, eviction_policy="evict_first")
    return tl.load(weight + column, mask=column < width, other=0.0, eviction_policy="evict_first")


@triton.jit
def group_sums(values, row, scale, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """[ROWS, groups]: products of codes summed by group, times the weight's scales [groups]."""
    products = values * row.to(tl.float32)[None, :]
    products = tl.reshape(products, [ROWS, CHUNK // GROUP, GROUP])
    return tl.sum(products, 2) * scale[None, :]


@triton.jit
def multiply_row_fp8(
    out, codes, scales, weight, weight_scale, bias, rows, n, groups, w_stride, out_stride,
    K: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, EVEN: tl.constexpr,
    HAS_BIAS: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One output feature for all rows; a gated one from rows ``program`` and ``program + n``."""
    start_dependents(PDL)
    feature = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    lower, upper = weight + feature * w_stride, weight + (feature + n) * w_stride
    lower_scale = weight_scale + feature // GROUP * groups
    upper_scale = weight_scale + (feature + n) // GROUP * groups
    first = load_codes(lower, 0, K, CHUNK, EVEN)
    second = first
    if GATED:
        second = load_codes(upper, 0, K, CHUNK, EVEN)
    wait_for_inputs(PDL)
    sums = tl.zeros([ROWS, CHUNK // GROUP], tl.float32)
    ups = tl.zeros([ROWS, CHUNK // GROUP], tl.float32)
    for start in tl.static_range(0, K, CHUNK):
        if start > 0:
            first = load_codes(lower, start, K, CHUNK, EVEN)
            if GATED:
                second = load_codes(upper, start, K, CHUNK, EVEN)
        column = start + tl.arange(0, CHUNK)
        inside = (row < rows)[:, None] & (column < K)[None, :]
        at = codes + row[:, None] * K + column[None, :]
        values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        group = start // GROUP + tl.arange(0, CHUNK // GROUP)
        known = group < groups
        at = scales + row[:, None] * groups + group[None, :]
        scale = tl.load(at, mask=(row < rows)[:, None] & known[None, :], other=0.0)
        lower_factor = tl.load(lower_scale + group, mask=known, other=0.0)
        sums += group_sums(values, first, lower_factor, ROWS, CHUNK) * scale
        if GATED:
            upper_factor = tl.load(upper_scale + group, mask=known, other=0.0)
            ups += group_sums(values, second, upper_factor, ROWS, CHUNK) * scale
    result = tl.sum(sums, 1)
    if HAS_BIAS:
        result += tl.load(bias + feature).to(tl.float32)
    if GATED:
        up = tl.sum(ups, 1)
        if HAS_BIAS:
            up += tl.load(bias + feature + n).to(tl.float32)
        result = gated(result, up)
    tl.store(out + row * out_stride + feature, result.to(out.dtype.element_ty), mask=row < rows)


@triton.jit
def multiply_tile_fp8(
    codes, scales, weight, weight_scale, at, used, rows, groups, w_stride, begin, end,
    K: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """[LINES, ROWS]: the weight rows ``at`` times the rows over the columns [begin, end)."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, GROUP)
    present = row < rows
    weights = weight + at[:, None].to(tl.int64) * w_stride + column[None, :]
    values = codes + row[None, :] * K + column[:, None]
    weight_scales = weight_scale + at // GROUP * groups
    total = tl.zeros([LINES, ROWS], tl.float32)
    for start in tl.range(begin, end, GROUP, num_stages=STAGES):
        group = start // GROUP
        if EVEN:
            w = tl.load(
                weights + start, mask=used[:, None], other=0.0, eviction_policy="evict_first"
            )
            v = tl.load(values + start, mask=present[None, :], other=0.0)
        else:
            inside = start + column < K
            w = tl.load(
                weights + start, mask=used[:, None] & inside[None, :], other=0.0,
                eviction_policy="evict_first",
            )  # fmt: skip
            v = tl.load(values + start, mask=present[None, :] & inside[:, None], other=0.0)
        lines_scale = tl.load(weight_scales + group, mask=used, other=0.0)
        rows_scale = tl.load(scales + row * groups + group, mask=present, other=0.0)
        total += tl.dot(w, v) * (lines_scale[:, None] * rows_scale[None, :])
    return total


@triton.jit
def multiply_rows_fp8(
    out, codes, scales, weight, weight_scale, bias, parts, arrivals, rows, n, groups, w_stride,
    out_stride, share,
    K: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr, SPLIT: tl.constexpr,
    EVEN: tl.constexpr, STAGES: tl.constexpr,
    HAS_BIAS: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of weight rows over one of SPLIT equal shares of K."""
    tile, part = tl.program_id(0), tl.program_id(1)
    at, used = weight_rows(tile, n, LINES, LINES, GATED)
    wait_for_inputs(PDL)
    total = multiply_tile_fp8(
        codes, scales, weight, weight_scale, at, used, rows, groups, w_stride,
        part * share, tl.minimum((part + 1) * share, K), K, ROWS, LINES, EVEN, STAGES,
    )  # fmt: skip
    start_dependents(PDL)
    finish_tile(
        out, total, bias, parts, arrivals, tile, part, rows, n, out_stride,
        ROWS, LINES, LINES, SPLIT, HAS_BIAS, GATED,
    )  # fmt: skip


def quantize_rows(x: torch.Tensor, *, pdl: bool = False) -> Quantized:
    """Codes and scales of x [T, K]."""
    made = _quantized(x)
    rows, k = x.shape
    columns = max(GROUP.value, min(QUANTIZED_AT_ONCE, triton.next_power_of_2(k)))
    quantize_row[(rows, triton.cdiv(k, columns))](
        made.codes, made.scales, x, x.stride(0), made.scales.shape[1],
        K=k, COLUMNS=columns, PDL=pdl, num_warps=max(1, columns // 512), **options(pdl),
    )  # fmt: skip
    return made


def add_norm_quantize_rows(
    summed: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    pdl: bool = False,
) -> Quantized:
    """summed := residual + x; codes and scales of its norm.

    On an H200 several rows lose by dependent launch: they wait where the product in front computes.
    """
    made = _quantized(x)
    launch_add_norm_quantize(
        made.codes, made.scales, made.scales.stride(), summed, x, residual, weight, eps,
        pdl=pdl and x.shape[0] == 1,
    )  # fmt: skip
    return made


def _quantized(x: torch.Tensor) -> Quantized:
    rows, k = x.shape
    return Quantized(
        torch.empty((rows, k), dtype=torch.float8_e4m3fn, device=x.device),
        torch.empty((rows, triton.cdiv(k, GROUP.value)), dtype=torch.float32, device=x.device),
    )


def choose_tiling(rows: int, n: int, k: int) -> Tiling:
    """As measured on an H200: a tile has half the bytes of a 16-bit one, so K is split more often.

    Tiles are twice as high where many rows would be read by each of them.
    """
    split = 4 if n < 128 * LINES and k >= 4 * 1024 else 1
    high = rows > 32 or (rows > 8 and split == 1)
    return Tiling(2 * LINES if high else LINES, split, stages=6 if rows > 32 and split > 1 else 4)


def product(
    x: Quantized,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    *,
    gate: bool = False,
    pdl: bool = False,
    tiling: Tiling | None = None,
    warps: int = 4,
    vector_rows: int = VECTOR_ROWS,
) -> torch.Tensor:
    """Quantised rows times a weight [N, K]; gated as in ``few_rows_linear``."""
    rows, k = x.codes.shape
    n = weight.shape[0] // 2 if gate else weight.shape[0]
    out = torch.empty((rows, n), dtype=dtype, device=weight.device)
    groups, stride = x.scales.shape[1], weight.stride(0)
    inputs = (x.codes, x.scales, weight, weight_scale, bias)
    shared = {"K": k, "HAS_BIAS": bias is not None, "GATED": gate, "PDL": pdl, **options(pdl)}
    if rows <= vector_rows:
        chunk = max(GROUP.value, min(CHUNK, triton.next_power_of_2(k)))
        multiply_row_fp8[(n,)](
            out, *inputs, rows, n, groups, stride, n,
            ROWS=rows, CHUNK=chunk, EVEN=k % chunk == 0, num_warps=warps, **shared,
        )  # fmt: skip
        return out
    rows_pad = max(FEWEST_COLUMNS, triton.next_power_of_2(rows))
    tiling = tiling or choose_tiling(rows, weight.shape[0], k)
    lines = tiling.used
    tiles = triton.cdiv(n, lines // 2 if gate else lines)
    share = triton.cdiv(triton.cdiv(k, tiling.split), GROUP.value) * GROUP.value
    held = tiles * tiling.split * lines * rows_pad if tiling.split > 1 else 1
    parts = scratch(weight.device, held, tiles)
    multiply_rows_fp8[(tiles, tiling.split)](
        out, *inputs, parts.parts, parts.arrivals, rows, n, groups, stride, n, share,
        ROWS=rows_pad, LINES=lines, SPLIT=tiling.split, EVEN=k % GROUP.value == 0,
        STAGES=tiling.stages, num_warps=tiling.warps, **shared,
    )  # fmt: skip
    return out


def bind_linear(site: CallSite) -> Callable[..., torch.Tensor]:
    pdl = has_pdl(site)

    def call(
        x: torch.Tensor,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not x.numel():
            return torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
        return product(quantize_rows(x, pdl=pdl), weight, weight_scale, bias, x.dtype, pdl=pdl)

    return call


def bind_add_norm_linear(site: CallSite) -> Callable[..., torch.Tensor]:
    pdl, gate = has_pdl(site), bool(site.traits["gated"])

    def call(
        x: torch.Tensor,
        residual: torch.Tensor,
        summed: torch.Tensor,
        norm_weight: torch.Tensor,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        rows = add_norm_quantize_rows(summed, x, residual, norm_weight, eps, pdl=pdl)
        return product(rows, weight, weight_scale, bias, x.dtype, gate=gate, pdl=pdl)

    return call
