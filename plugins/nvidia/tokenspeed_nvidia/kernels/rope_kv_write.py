# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""rope_kv_write@1: norm and rotation of query and key heads, and the KV write, in one launch.

program (token, part)   parts 0 .. a-1     HEADS query heads each, in place
                        parts a .. b-1     HEADS key heads each, into their page
                        parts b ..         HEADS value heads each, into their page
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

from tokenspeed_nvidia.kernels.kv_write import to_cache
from tokenspeed_nvidia.kernels.pdl import has_pdl, options, start_dependents, wait_for_inputs

HEADS = 8
"""Heads of a program: few, so that one token's heads spread over several multiprocessors."""


@triton.jit
def rotated_heads(
    x, weight, head, used, cos, sin, stride_h, eps,
    WIDTH: tl.constexpr, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr,
    PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Both partners of every pair [heads, PAIRS], and what is not rotated [heads, REST]."""
    pair, rest = tl.arange(0, PAIRS), ROTARY + tl.arange(0, REST)
    first, second = partners(pair, ROTARY, INTERLEAVED)
    in_pair, in_rest = pair < ROTARY // 2, rest < WIDTH
    row = x + head[:, None] * stride_h
    inside = used[:, None] & in_pair[None, :]
    a = tl.load(row + first[None, :], mask=inside, other=0.0).to(tl.float32)
    b = tl.load(row + second[None, :], mask=inside, other=0.0).to(tl.float32)
    c = tl.load(row + rest[None, :], mask=used[:, None] & in_rest[None, :], other=0.0)
    c = c.to(tl.float32)
    if NORM:
        squares = tl.sum(a * a, 1) + tl.sum(b * b, 1) + tl.sum(c * c, 1)
        factor = tl.rsqrt(squares / WIDTH + eps)[:, None]
        a *= factor * tl.load(weight + first, mask=in_pair, other=0.0).to(tl.float32)[None, :]
        b *= factor * tl.load(weight + second, mask=in_pair, other=0.0).to(tl.float32)[None, :]
        c *= factor * tl.load(weight + rest, mask=in_rest, other=0.0).to(tl.float32)[None, :]
        element = x.dtype.element_ty  # the normalised head is rounded before it is rotated
        a, b = a.to(element).to(tl.float32), b.to(element).to(tl.float32)
    return a * cos - b * sin, b * cos + a * sin, c


@triton.jit
def partners(pair, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Columns of the two partners of each pair."""
    if INTERLEAVED:
        return 2 * pair, 2 * pair + 1
    return pair, pair + ROTARY // 2


@triton.jit
def store_heads(
    target, a, b, c, head, used, stride_h, scale,
    WIDTH: tl.constexpr, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, FP8: tl.constexpr,
    PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """What ``rotated_heads`` gave, to where the heads of one token lie."""
    pair, rest = tl.arange(0, PAIRS), ROTARY + tl.arange(0, REST)
    first, second = partners(pair, ROTARY, INTERLEAVED)
    row = target + head[:, None] * stride_h
    inside = used[:, None] & (pair < ROTARY // 2)[None, :]
    tl.store(row + first[None, :], to_cache(a, scale, FP8, target), mask=inside)
    tl.store(row + second[None, :], to_cache(b, scale, FP8, target), mask=inside)
    if ROTARY < WIDTH:
        left = used[:, None] & (rest < WIDTH)[None, :]
        tl.store(row + rest[None, :], to_cache(c, scale, FP8, target), mask=left)


@triton.jit
def find_page(page_table, token_slot, position, token, slots, table_width, table_stride, pages,
              PAGE: tl.constexpr):  # fmt: skip
    """The page of a token. What points outside its tensor is clamped into it."""
    slot = tl.load(token_slot + token)
    slot = tl.minimum(tl.maximum(slot, 0), slots - 1).to(tl.int64)
    entry = tl.minimum(tl.maximum(position, 0) // PAGE, table_width - 1)
    page = tl.load(page_table + slot * table_stride + entry)
    return tl.minimum(tl.maximum(page, 0), pages - 1).to(tl.int64)


@triton.jit(do_not_specialize=["table_rows"])
def write_heads(
    q, k, v, positions, cos_sin, k_cache, v_cache, page_table, token_slot, q_weight, k_weight,
    k_scale, v_scale, eps, table_rows, slots, table_width, pages,
    q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h,
    cos_stride, table_stride, kc_stride_p, kc_stride_h, kc_stride_t,
    vc_stride_p, vc_stride_h, vc_stride_t,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, ROTARY: tl.constexpr,
    PAGE: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr, FP8: tl.constexpr,
    HEADS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Some heads of one token."""
    start_dependents(PDL)
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q_parts: tl.constexpr = (Q_HEADS + HEADS - 1) // HEADS
    kv_parts: tl.constexpr = (KV_HEADS + HEADS - 1) // HEADS
    pair = tl.arange(0, PAIRS)
    wait_for_inputs(PDL)
    position = tl.load(positions + token)
    row = tl.minimum(tl.maximum(position, 0), table_rows - 1).to(tl.int64) * cos_stride
    cos = tl.load(cos_sin + row + pair, mask=pair < ROTARY // 2, other=0.0)[None, :]
    sin = tl.load(cos_sin + row + ROTARY // 2 + pair, mask=pair < ROTARY // 2, other=0.0)[None, :]
    if part < q_parts:
        head = part * HEADS + tl.arange(0, HEADS)
        used = head < Q_HEADS
        at = q + token * q_stride_t
        a, b, c = rotated_heads(
            at, q_weight, head, used, cos, sin, q_stride_h, eps,
            WIDTH, ROTARY, INTERLEAVED, NORM, PAIRS, REST,
        )  # fmt: skip
        store_heads(
            at, a, b, c, head, used, q_stride_h, None,
            WIDTH, ROTARY, INTERLEAVED, False, PAIRS, REST,
        )  # fmt: skip
    else:
        page = find_page(
            page_table, token_slot, position, token, slots, table_width, table_stride, pages, PAGE
        )
        offset = tl.maximum(position, 0) % PAGE
        is_key = part < q_parts + kv_parts
        head = (part - q_parts) % kv_parts * HEADS + tl.arange(0, HEADS)
        used = head < KV_HEADS
        if is_key:
            a, b, c = rotated_heads(
                k + token * k_stride_t, k_weight, head, used, cos, sin, k_stride_h, eps,
                WIDTH, ROTARY, INTERLEAVED, NORM, PAIRS, REST,
            )  # fmt: skip
            store_heads(
                k_cache + page * kc_stride_p + offset * kc_stride_t, a, b, c, head, used,
                kc_stride_h, k_scale, WIDTH, ROTARY, INTERLEAVED, FP8, PAIRS, REST,
            )  # fmt: skip
        else:
            column = tl.arange(0, COLUMNS)
            inside = used[:, None] & (column < WIDTH)[None, :]
            at = v + token * v_stride_t + head[:, None] * v_stride_h + column[None, :]
            value = tl.load(at, mask=inside, other=0.0)
            to = v_cache + page * vc_stride_p + offset * vc_stride_t
            to += head[:, None] * vc_stride_h + column[None, :]
            tl.store(to, to_cache(value, v_scale, FP8, v_cache), mask=inside)


def rope_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    token_slot: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    eps: float,
    *,
    interleaved: bool,
    pdl: bool = False,
) -> None:
    """q in place, k and v to their pages. With scales, the pages hold 8-bit floats."""
    tokens, q_heads, width = q.shape
    if not tokens:
        return
    kv_heads, rotary = k.shape[1], cos_sin.shape[1]
    heads = min(HEADS, triton.next_power_of_2(kv_heads))
    parts = triton.cdiv(q_heads, heads) + 2 * triton.cdiv(kv_heads, heads)
    write_heads[(tokens, parts)](
        q, k, v, positions, cos_sin, k_cache, v_cache, page_table, token_slot, q_weight, k_weight,
        k_scale, v_scale, eps, cos_sin.shape[0],
        page_table.shape[0], page_table.shape[1], k_cache.shape[0],
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        cos_sin.stride(0), page_table.stride(0),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        Q_HEADS=q_heads, KV_HEADS=kv_heads, WIDTH=width, ROTARY=rotary, PAGE=k_cache.shape[2],
        INTERLEAVED=interleaved, NORM=q_weight is not None, FP8=k_scale is not None,
        HEADS=heads, PAIRS=triton.next_power_of_2(rotary // 2),
        REST=triton.next_power_of_2(max(1, width - rotary)),
        COLUMNS=triton.next_power_of_2(width), PDL=pdl,
        num_warps=max(1, min(4, heads * width // 256)), **options(pdl),
    )  # fmt: skip


def bind(site: CallSite) -> Callable[..., None]:
    run = bind_fp8(site)

    def call(*args: Any) -> None:
        run(*args[:-1], None, None, args[-1])

    return call


def bind_fp8(site: CallSite) -> Callable[..., None]:
    return partial(rope_kv_write, pdl=has_pdl(site), interleaved=bool(site.traits["interleaved"]))
