# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""silu_and_mul@1."""

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

BLOCK = 1024


@triton.jit
def gated(gate, up):
    """silu(gate) * up."""
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def gate_rows(out, x, width, x_stride, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """One program computes BLOCK columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    wait_for_inputs(PDL)
    gate = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + width + column, mask=inside, other=0.0).to(tl.float32)
    start_dependents(PDL)
    tl.store(out + row * width + column, gated(gate, up).to(out.dtype.element_ty), mask=inside)


def silu_and_mul(x: torch.Tensor, *, pdl: bool = False) -> torch.Tensor:
    """silu of the first half of the columns times the second half."""
    rows, width = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    if out.numel():
        grid = (rows, triton.cdiv(width, BLOCK))
        gate_rows[grid](
            out, x, width, x.stride(0), BLOCK=BLOCK, PDL=pdl, num_warps=4, **options(pdl)
        )
    return out


def bind(site: CallSite) -> Callable[..., torch.Tensor]:
    return partial(silu_and_mul, pdl=has_pdl(site))
