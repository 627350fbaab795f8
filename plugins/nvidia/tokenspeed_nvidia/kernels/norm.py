# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""rms_norm@1 and add_rms_norm@1."""

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

from tokenspeed_nvidia.kernels.pdl import has_pdl, options, start_dependents, wait_for_inputs

TILE = 4096
"""Elements of one program's tile: one row of a hidden state, many of a head."""


@triton.jit(do_not_specialize=["rows"])
def rms_norm_rows(
    out, x, weight, rows, heads, outer, inner, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ROWS rows a program; row r lies at (r // heads) * outer + (r % heads) * inner in x."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    start = (row // heads) * outer + (row % heads) * inner
    factor = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    value = tl.load(x + start[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
    start_dependents(PDL)
    scale = tl.rsqrt(tl.sum(value * value, axis=1) / WIDTH + eps)
    value = value * scale[:, None] * factor[None, :]
    target = out + row[:, None] * WIDTH + column[None, :]
    tl.store(target, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm_rows(
    out, summed, x, residual, weight, summed_stride, x_stride, residual_stride, eps,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row a program. The norm is of the sum as the residual keeps it, rounded."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < WIDTH
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    stream = residual + row * residual_stride + column
    value += tl.load(stream, mask=inside, other=0.0).to(tl.float32)
    start_dependents(PDL)
    rounded = value.to(summed.dtype.element_ty)
    tl.store(summed + row * summed_stride + column, rounded, mask=inside)
    value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / WIDTH + eps)
    value = value * scale * factor
    tl.store(out + row * WIDTH + column, value.to(out.dtype.element_ty), mask=inside)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, pdl: bool = False
) -> torch.Tensor:
    """Rows may be heads of a view of a fused projection: strides of two leading dimensions."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not x.numel():
        return out
    rows3 = x if x.dim() == 3 else x.reshape(-1, 1, x.shape[-1])
    tokens, heads, width = rows3.shape
    columns = triton.next_power_of_2(width)
    tile = max(1, min(TILE // columns, triton.next_power_of_2(tokens * heads)))
    grid = (triton.cdiv(tokens * heads, tile),)
    rms_norm_rows[grid](
        out, rows3, weight, tokens * heads, heads, rows3.stride(0), rows3.stride(1), eps,
        WIDTH=width, ROWS=tile, COLUMNS=columns, PDL=pdl,
        num_warps=_warps(tile * columns), **options(pdl),
    )  # fmt: skip
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *, pdl: bool = False
) -> torch.Tensor:
    """residual += x in place; the norm of the new residual."""
    return add_rms_norm_into(residual, x, residual, weight, eps, pdl=pdl)


def add_rms_norm_into(
    summed: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    pdl: bool,
) -> torch.Tensor:
    """summed := residual + x, which may be the residual itself; the norm of the sum."""
    rows, width = x.shape
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    if out.numel():
        columns = triton.next_power_of_2(width)
        add_rms_norm_rows[(rows,)](
            out, summed, x, residual, weight,
            summed.stride(0), x.stride(0), residual.stride(0), eps,
            WIDTH=width, COLUMNS=columns, PDL=pdl, num_warps=_warps(columns), **options(pdl),
        )  # fmt: skip
    return out


def _warps(elements: int) -> int:
    """16 elements a thread: two 16-byte accesses in flight for 16-bit values."""
    return max(1, min(16, elements // 512))


def bind_rms_norm(site: CallSite) -> Callable[..., torch.Tensor]:
    return partial(rms_norm, pdl=has_pdl(site))


def bind_add_rms_norm(site: CallSite) -> Callable[..., torch.Tensor]:
    return partial(add_rms_norm, pdl=has_pdl(site))
