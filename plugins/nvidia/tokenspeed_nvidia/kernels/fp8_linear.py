# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""linear_fp8@1 for many rows, by cuBLAS through torch, and by a product of tiles; by cuBLAS also
with what stands in front of it: the sum and norm, or the activation.

Tensor cores add products of codes within a block of 128 features in their own short format; each
block's sum is multiplied with its two scales and added in float32 (DeepSeek-AI, 2024,
arXiv:2412.19437).
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

from tokenspeed_nvidia.kernels.e4m3 import GROUP
from tokenspeed_nvidia.kernels.fp8_quantize import Codes, add_norm_quantize, quantize
from tokenspeed_nvidia.kernels.pdl import has_pdl, options, start_dependents, wait_for_inputs

ALIGNED_BYTES = 16
"""What cuBLAS wants rows of codes to begin at multiples of."""


@dataclass(frozen=True)
class Tile:
    """Tokens and features of one program, and how it is run.

    ``features`` divides 128, so that a tile has one scale of the weight for each block of K.
    ``together`` tiles of tokens are computed next to each other: they share a part of the weight
    in the L2 cache.
    """

    tokens: int
    features: int
    warps: int
    stages: int
    together: int = 8


@triton.jit
def multiply_tiles(
    out, codes, scales, weight, weight_scale, bias, rows, n, padded, w_stride, scale_stride,
    K: tl.constexpr, TOKENS: tl.constexpr, FEATURES: tl.constexpr,
    TOGETHER: tl.constexpr, EVEN: tl.constexpr, HAS_BIAS: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One tile [TOKENS, FEATURES] of the result."""
    down, across = tl.cdiv(rows, TOKENS), tl.cdiv(n, FEATURES)
    place = tl.program_id(0)
    strip = place // (TOGETHER * across)
    height = tl.minimum(down - strip * TOGETHER, TOGETHER)
    place = place % (TOGETHER * across)
    row = (strip * TOGETHER + place % height) * TOKENS + tl.arange(0, TOKENS)
    first = place // height * FEATURES
    feature = first + tl.arange(0, FEATURES)
    some_row, some_feature = row % rows, feature % n  # past the end: anything that is there
    column = tl.arange(0, GROUP)
    left = codes + some_row[:, None].to(tl.int64) * K + column[None, :]
    right = weight + some_feature[None, :].to(tl.int64) * w_stride + column[:, None]
    factor = weight_scale + (first // GROUP).to(tl.int64) * scale_stride
    wait_for_inputs(PDL)
    total = tl.zeros([TOKENS, FEATURES], tl.float32)
    for block in tl.range(0, tl.cdiv(K, GROUP), num_stages=STAGES):
        start = block * GROUP
        if EVEN:
            a, b = tl.load(left + start), tl.load(right + start)
        else:
            inside = start + column < K
            a = tl.load(left + start, mask=inside[None, :], other=0.0)
            b = tl.load(right + start, mask=inside[:, None], other=0.0)
        scale = tl.load(scales + block * padded + some_row) * tl.load(factor + block)
        total += tl.dot(a, b) * scale[:, None]
    start_dependents(PDL)
    if HAS_BIAS:
        total += tl.load(bias + some_feature).to(tl.float32)[None, :]
    used = (row < rows)[:, None] & (feature < n)[None, :]
    at = row[:, None].to(tl.int64) * n + feature[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=used)


def choose_tile(rows: int, n: int, units: int) -> Tile:
    """Large tiles for many rows; for fewer, narrow ones, so that every unit reads weights."""
    narrow = n < 64 * units
    if rows <= 64:
        return Tile(64, 32, warps=4, stages=6) if narrow else Tile(64, 64, warps=4, stages=5)
    if rows <= 128:
        return Tile(128, 32, warps=4, stages=6) if narrow else Tile(128, 64, warps=8, stages=4)
    return Tile(128, 128, warps=8, stages=3)


def product(
    x: Codes,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    *,
    tile: Tile,
    pdl: bool = False,
) -> torch.Tensor:
    """Quantised activations times a weight [N, K]."""
    rows, n, k = x.rows, weight.shape[0], weight.shape[1]
    out = torch.empty((rows, n), dtype=dtype, device=weight.device)
    tiles = triton.cdiv(rows, tile.tokens) * triton.cdiv(n, tile.features)
    multiply_tiles[(tiles,)](
        out, x.codes, x.scales, weight, weight_scale, bias, rows, n, x.scales.stride(0),
        weight.stride(0), weight_scale.stride(0),
        K=k, TOKENS=tile.tokens, FEATURES=tile.features, TOGETHER=tile.together,
        EVEN=k % GROUP.value == 0, HAS_BIAS=bias is not None, STAGES=tile.stages, PDL=pdl,
        num_warps=tile.warps, **options(pdl),
    )  # fmt: skip
    return out


def by_tiles(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    units: int,
    pdl: bool = False,
) -> torch.Tensor:
    """The op by this module's own product."""
    if not x.shape[0]:
        return x.new_empty((0, weight.shape[0]))
    return multiply(quantize(x, pdl=pdl), weight, weight_scale, bias, x.dtype, units, pdl)


def multiply(
    x: Codes,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    units: int,
    pdl: bool,
) -> torch.Tensor:
    """The product in tiles that suit its size."""
    tile = choose_tile(x.rows, weight.shape[0], units)
    return product(x, weight, weight_scale, bias, dtype, tile=tile, pdl=pdl)


def multiply_by_cublas(
    x: Codes, weight: torch.Tensor, weight_scale: torch.Tensor, dtype: torch.dtype, units: int
) -> torch.Tensor:
    """The product without a bias; K is a multiple of 512.

    Weights of models are aligned; one that is not is left to tiles.
    """
    if (weight.data_ptr() | weight.stride(0)) % ALIGNED_BYTES:
        return multiply(x, weight, weight_scale, None, dtype, units, False)
    kind = torch.nn.functional.ScalingType
    out: torch.Tensor = torch.nn.functional.scaled_mm(
        x.codes,
        weight.t(),
        x.scales.t(),
        kind.BlockWise1x128,
        weight_scale.t(),
        kind.BlockWise128x128,
        output_dtype=dtype,
    )
    return out[: x.rows]


def by_cublas(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    units: int,
    gate: bool = False,
    pdl: bool = False,
) -> torch.Tensor:
    """linear_fp8@1, or with ``gate`` silu_linear_fp8@1, by cuBLAS."""
    if not x.shape[0]:
        return x.new_empty((0, weight.shape[0]))
    codes = quantize(x, gate=gate, pdl=pdl)
    return multiply_by_cublas(codes, weight, weight_scale, x.dtype, units)


def add_norm_by_cublas(
    x: torch.Tensor,
    residual: torch.Tensor,
    summed: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    *,
    units: int,
) -> torch.Tensor:
    """add_norm_linear_fp8@1 without a gate."""
    if not x.shape[0]:
        return x.new_empty((0, weight.shape[0]))
    codes = add_norm_quantize(summed, x, residual, norm_weight, eps)
    return multiply_by_cublas(codes, weight, weight_scale, x.dtype, units)


def bind_tiles(site: CallSite) -> Callable[..., torch.Tensor]:
    return partial(by_tiles, units=site.device.units, pdl=has_pdl(site))


def bind_cublas(site: CallSite) -> Callable[..., torch.Tensor]:
    return partial(by_cublas, units=site.device.units, pdl=has_pdl(site))


def bind_silu_cublas(site: CallSite) -> Callable[..., torch.Tensor]:
    return partial(by_cublas, units=site.device.units, gate=True, pdl=has_pdl(site))


def bind_add_norm_cublas(site: CallSite) -> Callable[..., torch.Tensor]:
    return partial(add_norm_by_cublas, units=site.device.units)
