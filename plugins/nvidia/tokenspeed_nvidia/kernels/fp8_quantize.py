# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Activations to e4m3 codes with a scale for each token and 128 features, in one pass.

Scales lie by group, then by token, as a product reads them: for a tile of tokens, those of one
group are side by side. It is also the layout that cuBLAS asks for.
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tokenspeed_nvidia.kernels.activation import gated
from tokenspeed_nvidia.kernels.e4m3 import GROUP, group_scales, saturated
from tokenspeed_nvidia.kernels.pdl import options, start_dependents, wait_for_inputs

ROWS, COLUMNS = 8, 1024
"""Of one program: every thread has two loads of 16 bytes under way for each row of its own."""

ALIGNMENT = 4
"""Tokens are padded to it, since cuBLAS reads four scales at once. The padding is never written:
what lies there ends in rows that nobody reads."""


@dataclass(frozen=True)
class Codes:
    """Quantised activations.

    Attributes:
        codes: [T, K] float8_e4m3fn, T padded to ALIGNMENT.
        scales: [ceil(K / 128), T] float32.
        rows: tokens that were asked for.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    rows: int


@triton.jit
def store_codes(
    codes, scales, scale_stride, value, row, column, K: tl.constexpr, COLUMNS: tl.constexpr
):
    """Quantise COLUMNS values of a row, which start at ``column``, zero where the row has ended.

    ``scales`` are the row's, ``scale_stride`` apart.
    """
    count: tl.constexpr = COLUMNS // GROUP
    value = tl.reshape(value, [count, GROUP])
    scale = group_scales(value)
    code = saturated(value / scale[:, None])
    group = column // GROUP + tl.arange(0, count)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    tl.store(codes + row * K + at, code.to(codes.dtype.element_ty), mask=at < K)
    tl.store(scales + group * scale_stride, scale, mask=group < tl.cdiv(K, GROUP))


@triton.jit
def quantize_rows(
    codes, scales, x, rows, x_stride, padded,
    K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """COLUMNS features of ROWS tokens; gated ones of x [T, 2 K], gates in front."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    present = (row < rows)[:, None]
    if not EVEN:
        present = present & (column < K)[None, :]
    wait_for_inputs(PDL)
    at = row[:, None].to(tl.int64)
    values = x + at * x_stride + column[None, :]
    value = tl.load(values, mask=present, other=0.0).to(tl.float32)
    if GATED:
        value = gated(value, tl.load(values + K, mask=present, other=0.0).to(tl.float32))
    start_dependents(PDL)
    value = tl.reshape(value, [ROWS, COLUMNS // GROUP, GROUP])
    scale = group_scales(value)
    code = saturated(value / scale[:, :, None])
    code = tl.reshape(code.to(codes.dtype.element_ty), [ROWS, COLUMNS])
    tl.store(codes + at * K + column[None, :], code, mask=present)
    group = tl.program_id(1) * (COLUMNS // GROUP) + tl.arange(0, COLUMNS // GROUP)
    known = (row < rows)[:, None] & (group < tl.cdiv(K, GROUP))[None, :]
    tl.store(scales + group[None, :].to(tl.int64) * padded + row[:, None], scale, mask=known)


@triton.jit
def add_norm_quantize_row(
    codes, scales, summed, x, residual, weight, row_stride, group_stride, summed_stride, x_stride,
    residual_stride, eps, K: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row: the sum, rounded; its norm, rounded; the codes."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < K
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    stream = residual + row * residual_stride + column
    value += tl.load(stream, mask=inside, other=0.0).to(tl.float32)
    start_dependents(PDL)
    rounded = value.to(summed.dtype.element_ty)
    tl.store(summed + row * summed_stride + column, rounded, mask=inside)
    value = rounded.to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, axis=0) / K + eps) * factor
    value = value.to(summed.dtype.element_ty).to(tl.float32)
    scales += row * row_stride
    store_codes(codes, scales, group_stride, value, row, 0, K, COLUMNS)


def quantize(x: torch.Tensor, *, gate: bool = False, pdl: bool = False) -> Codes:
    """Codes and scales of x [T, K], whose rows may lie apart; with ``gate``, of the gated x
    [T, 2 K]."""
    rows, k = x.shape[0], x.shape[1] // 2 if gate else x.shape[1]
    made = _codes(rows, k, x.device)
    columns = max(GROUP.value, min(COLUMNS, triton.next_power_of_2(k)))
    quantize_rows[(triton.cdiv(rows, ROWS), triton.cdiv(k, columns))](
        made.codes, made.scales, x, rows, x.stride(0), made.scales.stride(0),
        K=k, ROWS=ROWS, COLUMNS=columns, EVEN=k % columns == 0, GATED=gate, PDL=pdl,
        num_warps=8, **options(pdl),
    )  # fmt: skip
    return made


def add_norm_quantize(
    summed: torch.Tensor, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> Codes:
    """summed := residual + x; codes and scales of its norm."""
    made = _codes(x.shape[0], x.shape[1], x.device)
    strides = (made.scales.stride(1), made.scales.stride(0))
    launch_add_norm_quantize(
        made.codes, made.scales, strides, summed, x, residual, weight, eps, pdl=False
    )
    return made


def launch_add_norm_quantize(
    codes: torch.Tensor,
    scales: torch.Tensor,
    scale_strides: tuple[int, ...],
    summed: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    pdl: bool,
) -> None:
    """One row a program. ``scale_strides``: from token to token, and from group to group."""
    rows, k = x.shape
    columns = max(GROUP.value, triton.next_power_of_2(k))
    add_norm_quantize_row[(rows,)](
        codes, scales, summed, x, residual, weight, *scale_strides,
        summed.stride(0), x.stride(0), residual.stride(0), eps,
        K=k, COLUMNS=columns, PDL=pdl, num_warps=max(1, min(16, columns // 512)), **options(pdl),
    )  # fmt: skip


def _codes(rows: int, k: int, device: torch.device) -> Codes:
    padded = triton.cdiv(rows, ALIGNMENT) * ALIGNMENT
    codes = torch.empty((padded, k), dtype=torch.float8_e4m3fn, device=device)
    groups = triton.cdiv(k, GROUP.value)
    return Codes(codes, torch.empty((groups, padded), dtype=torch.float32, device=device), rows)
