# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""embedding@1 and gather_rows@1: rows of a matrix by index."""

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

BLOCK = 2048


@triton.jit(do_not_specialize=["source_rows"])
def copy_rows(
    out, source, index, source_rows, width, out_stride, source_stride,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program copies BLOCK columns of one row; an index out of range is clamped."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    wait_for_inputs(PDL)
    chosen = tl.load(index + row)
    chosen = tl.minimum(tl.maximum(chosen, 0), source_rows - 1)
    value = tl.load(source + chosen * source_stride + column, mask=inside)
    tl.store(out + row * out_stride + column, value, mask=inside)


def _take(source: torch.Tensor, index: torch.Tensor, pdl: bool) -> torch.Tensor:
    width = source.shape[1]
    out = torch.empty((index.shape[0], width), dtype=source.dtype, device=source.device)
    if out.numel():
        block = min(BLOCK, triton.next_power_of_2(width))
        grid = (index.shape[0], triton.cdiv(width, block))
        rows, stride = source.shape[0], source.stride(0)
        copy_rows[grid](
            out, source, index, rows, width, out.stride(0), stride,
            BLOCK=block, PDL=pdl, **options(pdl),
        )  # fmt: skip
    return out


def embedding(ids: torch.Tensor, weight: torch.Tensor, *, pdl: bool = False) -> torch.Tensor:
    """Rows of the table by token id."""
    return _take(weight, ids, pdl)


def gather_rows(x: torch.Tensor, index: torch.Tensor, *, pdl: bool = False) -> torch.Tensor:
    """Rows of x by index."""
    return _take(x, index, pdl)


def bind_embedding(site: CallSite) -> Callable[..., torch.Tensor]:
    return partial(embedding, pdl=has_pdl(site))


def bind_gather_rows(site: CallSite) -> Callable[..., torch.Tensor]:
    return partial(gather_rows, pdl=has_pdl(site))
