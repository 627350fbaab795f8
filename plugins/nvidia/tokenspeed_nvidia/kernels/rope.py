# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""rope@1: both rotations in one launch, in place."""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

from tokenspeed_nvidia.kernels.pdl import has_pdl, options, start_dependents, wait_for_inputs


@triton.jit
def rotate_heads(
    x, head, pair, inside, stride_h, cos, sin, HALF: tl.constexpr, INTERLEAVED: tl.constexpr
):
    """Rotate the pairs of a [heads, HALF] tile."""
    if INTERLEAVED:
        first, step = 2 * pair, 1
    else:
        first, step = pair, HALF
    left = x + head[:, None] * stride_h + first[None, :]
    a = tl.load(left, mask=inside).to(tl.float32)
    b = tl.load(left + step, mask=inside).to(tl.float32)
    tl.store(left, (a * cos - b * sin).to(x.dtype.element_ty), mask=inside)
    tl.store(left + step, (b * cos + a * sin).to(x.dtype.element_ty), mask=inside)


@triton.jit
def rope_tokens(
    q, k, positions, cos_sin, table_rows,
    q_stride_t, q_stride_h, k_stride_t, k_stride_h, table_stride,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr, PAIRS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program rotates HEADS heads of one token: of q first, of k in the last program."""
    start_dependents(PDL)
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    head = tl.arange(0, HEADS)
    pair = tl.arange(0, PAIRS)
    wait_for_inputs(PDL)
    position = tl.load(positions + token)
    position = tl.minimum(tl.maximum(position, 0), table_rows - 1).to(tl.int64)
    row = cos_sin + position * table_stride + pair
    cos = tl.load(row, mask=pair < HALF, other=0.0)[None, :]
    sin = tl.load(row + HALF, mask=pair < HALF, other=0.0)[None, :]
    if part == tl.num_programs(1) - 1:
        inside = (head < K_HEADS)[:, None] & (pair < HALF)[None, :]
        base = k + token * k_stride_t
        rotate_heads(base, head, pair, inside, k_stride_h, cos, sin, HALF, INTERLEAVED)
    else:
        head += part * HEADS
        inside = (head < Q_HEADS)[:, None] & (pair < HALF)[None, :]
        base = q + token * q_stride_t
        rotate_heads(base, head, pair, inside, q_stride_h, cos, sin, HALF, INTERLEAVED)


def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    interleaved: bool,
    pdl: bool = False,
) -> None:
    """Rotate q and k in place."""
    tokens, q_heads, _ = q.shape
    if not tokens:
        return
    k_heads, half = k.shape[1], cos_sin.shape[1] // 2
    heads = triton.next_power_of_2(k_heads)
    grid = (tokens, triton.cdiv(q_heads, heads) + 1)
    rope_tokens[grid](
        q, k, positions, cos_sin, cos_sin.shape[0],
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), cos_sin.stride(0),
        Q_HEADS=q_heads, K_HEADS=k_heads, HALF=half, INTERLEAVED=interleaved,
        HEADS=heads, PAIRS=triton.next_power_of_2(half), PDL=pdl,
        num_warps=1 if heads * half <= 512 else 4, **options(pdl),
    )  # fmt: skip


def bind(site: CallSite) -> Callable[..., None]:
    interleaved, pdl = bool(site.traits["interleaved"]), has_pdl(site)

    def call(
        q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
    ) -> None:
        rope(q, k, positions, cos_sin, interleaved=interleaved, pdl=pdl)

    return call
