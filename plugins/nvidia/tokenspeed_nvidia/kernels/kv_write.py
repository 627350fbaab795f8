# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""kv_write@1: new keys and values into their pages."""

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

from tokenspeed_nvidia.kernels.e4m3 import saturated
from tokenspeed_nvidia.kernels.pdl import has_pdl, options, start_dependents, wait_for_inputs


@triton.jit
def to_cache(value, scale, FP8: tl.constexpr, cache):
    """A value as the cache keeps it: value / scale, saturated, where that has 8 bits.

    Divided exactly: a quotient that is off by a bit may lie on the other side of a code's edge.
    """
    if FP8:
        value = saturated(tl.math.div_rn(value.to(tl.float32), tl.load(scale)))
    return value.to(cache.dtype.element_ty)


@triton.jit
def write_tokens(
    k, v, k_cache, v_cache, page_table, token_slot, positions, k_scale, v_scale,
    slots, table_width, pages,
    k_stride_t, k_stride_h, v_stride_t, v_stride_h, table_stride,
    kc_stride_p, kc_stride_h, kc_stride_t, vc_stride_p, vc_stride_h, vc_stride_t,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    HEADS_PAD: tl.constexpr, WIDTH_PAD: tl.constexpr, FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token a program. What points outside its tensor is clamped into it."""
    start_dependents(PDL)
    token = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    slot = tl.load(token_slot + token)
    slot = tl.minimum(tl.maximum(slot, 0), slots - 1).to(tl.int64)
    position = tl.maximum(tl.load(positions + token), 0)
    entry = tl.minimum(position // PAGE, table_width - 1)
    page = tl.load(page_table + slot * table_stride + entry)
    page = tl.minimum(tl.maximum(page, 0), pages - 1).to(tl.int64)
    offset = position % PAGE
    head = tl.arange(0, HEADS_PAD)[:, None]
    column = tl.arange(0, WIDTH_PAD)[None, :]
    inside = (head < HEADS) & (column < WIDTH)
    key = tl.load(k + token * k_stride_t + head * k_stride_h + column, mask=inside)
    value = tl.load(v + token * v_stride_t + head * v_stride_h + column, mask=inside)
    key_at = k_cache + page * kc_stride_p + head * kc_stride_h + offset * kc_stride_t + column
    value_at = v_cache + page * vc_stride_p + head * vc_stride_h + offset * vc_stride_t + column
    tl.store(key_at, to_cache(key, k_scale, FP8, k_cache), mask=inside)
    tl.store(value_at, to_cache(value, v_scale, FP8, v_cache), mask=inside)


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    token_slot: torch.Tensor,
    positions: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    *,
    pdl: bool = False,
) -> None:
    """Write k and v of every token to its page; with scales, as 8-bit floats."""
    tokens, heads, width = k.shape
    if not tokens:
        return
    heads_pad, width_pad = triton.next_power_of_2(heads), triton.next_power_of_2(width)
    write_tokens[(tokens,)](
        k, v, k_cache, v_cache, page_table, token_slot, positions, k_scale, v_scale,
        page_table.shape[0], page_table.shape[1], k_cache.shape[0],
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), page_table.stride(0),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        HEADS=heads, WIDTH=width, PAGE=k_cache.shape[2],
        HEADS_PAD=heads_pad, WIDTH_PAD=width_pad, FP8=k_scale is not None, PDL=pdl,
        num_warps=max(1, min(8, heads_pad * width_pad // 256)), **options(pdl),
    )  # fmt: skip


def bind(site: CallSite) -> Callable[..., None]:
    return partial(kv_write, pdl=has_pdl(site))
