# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""attention_prefill_fp8@1 by FlashInfer's bf16 or fp16 kernel, over a copy of the rows' pages.

FlashInfer multiplies eight-bit keys only with eight-bit queries, which the op does not allow. So a
layer first writes its rows' pages out in the dtype of the queries: 6 bytes moved for an element
that a prefill multiplies hundreds of times. Rows too long for that go to the Triton kernel.
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite, HostStep

from tokenspeed_nvidia.kernels import attention_prefill
from tokenspeed_nvidia.kernels.flashinfer import (
    NOTHING,
    Geometry,
    Pages,
    Plan,
    compile_prefill,
    flatten_pages,
    next_wrapper,
    plan_prefill,
    prefill_wrapper,
)

MOST_BYTES = 1 << 30
"""Of a layer's copy, which lies beside the memory that the cache was sized for."""


@triton.jit(do_not_specialize_on_alignment=["k_scale", "v_scale"])
def widen_page(
    out_k, out_v, k_cache, v_cache, index, k_scale, v_scale,
    k_stride_p, k_stride_h, k_stride_t, v_stride_p, v_stride_h, v_stride_t,
    KV_HEADS: tl.constexpr, PAGE: tl.constexpr, LINES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Keys and values of one page and KV head."""
    place, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    page = tl.load(index + place).to(tl.int64)
    line, column = tl.arange(0, LINES)[:, None], tl.arange(0, WIDTH)[None, :]
    there = line < PAGE
    to = (place * KV_HEADS + head) * PAGE * WIDTH + line * WIDTH + column
    at = k_cache + page * k_stride_p + head * k_stride_h + line * k_stride_t + column
    keys = tl.load(at, mask=there, other=0.0).to(tl.float32) * tl.load(k_scale)
    tl.store(out_k + to, keys.to(out_k.dtype.element_ty), mask=there)
    at = v_cache + page * v_stride_p + head * v_stride_h + line * v_stride_t + column
    values = tl.load(at, mask=there, other=0.0).to(tl.float32) * tl.load(v_scale)
    tl.store(out_v + to, values.to(out_v.dtype.element_ty), mask=there)


def widen_pages(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    index: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [len(index), Hkv, page, D] of the pages ``index`` [n] int32, in ``dtype``."""
    _, kv_heads, page, width = k_cache.shape
    shape = (index.shape[0], kv_heads, page, width)
    keys, values = (torch.empty(shape, dtype=dtype, device=index.device) for _ in range(2))
    widen_page[(index.shape[0], kv_heads)](
        keys, values, k_cache, v_cache, index, k_scale, v_scale,
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        KV_HEADS=kv_heads, PAGE=page, LINES=triton.next_power_of_2(page), WIDTH=width,
        num_warps=max(1, min(4, page * width // 512)),
    )  # fmt: skip
    return keys, values


@dataclass(frozen=True)
class WidePlan:
    """A plan over the copies of the pages ``index`` [n]; None: too many, not copied."""

    plan: Plan
    index: torch.Tensor | None


class FlashInferPrefillFp8:
    """A bound attention_prefill_fp8@1. RuntimeError: FlashInfer's kernel cannot be made."""

    def __init__(self, site: CallSite) -> None:
        self._geometry = Geometry.of(site)
        self.plan_key = ("attention_prefill_fp8@1:flashinfer", self._geometry)
        if (refusal := compile_prefill(self._geometry)) is not None:
            raise RuntimeError(refusal)
        self._long = attention_prefill.bind(site)

    def plan(self, step: HostStep, scale: float) -> WidePlan:
        """What all layers of a step run with."""
        g, tokens = self._geometry, int(step.query_start[-1])
        pages = flatten_pages(step, g.page_size)
        size = len(pages.index) * g.page_size * g.kv_heads * g.head_dim * 4
        if not tokens or size > MOST_BYTES:
            return WidePlan(NOTHING, None)
        wrapper = next_wrapper(prefill_wrapper, g, step.page_table)
        places = torch.arange(len(pages.index), dtype=torch.int32, device=pages.index.device)
        plan_prefill(
            wrapper, g, step.query_start, Pages(pages.start, places, pages.last_len), scale
        )
        return WidePlan(Plan(wrapper, tokens), pages.index)

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        page_table: torch.Tensor,
        row_slot: torch.Tensor,
        query_start: torch.Tensor,
        kv_len: torch.Tensor,
        k_scale: torch.Tensor,
        v_scale: torch.Tensor,
        scale: float,
        *,
        plan: WidePlan | None = None,
    ) -> torch.Tensor:
        if plan is None:
            step = HostStep(query_start.cpu(), kv_len.cpu(), page_table, row_slot)
            plan = self.plan(step, scale)
        if plan.index is None:
            return self._long(
                q, k_cache, v_cache, page_table, row_slot, query_start, kv_len,
                k_scale, v_scale, scale,
            )  # fmt: skip
        keys, values = widen_pages(k_cache, v_cache, plan.index, k_scale, v_scale, q.dtype)
        return plan.plan.run(q, keys, values)


def bind(site: CallSite) -> FlashInferPrefillFp8:
    return FlashInferPrefillFp8(site)
