# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""attention_prefill@1 and attention_prefill_fp8@1 by FlashInfer.

Its kernel reads keys that lie end to end at 630 to 700 TFLOP/s on an H200, and out of pages at 530.
So a layer first copies its rows' pages, where they have so many queries that this pays, and always
where the cache has 8 bits: FlashInfer multiplies those only with queries of 8 bits, which the op
does not allow. The copy holds them times their scales, rounded to the type of the queries, as a
cache of that type would. 8-bit rows too long to be copied go to the Triton kernel.

Kernels are compiled when a site is bound, so that one that cannot be compiled is left out there and
then, and another kernel serves.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, HostStep

from tokenspeed_nvidia.kernels import attention_prefill, flashinfer
from tokenspeed_nvidia.kernels.flashinfer import NOTHING, Geometry, Pages, Plan, flatten_pages
from tokenspeed_nvidia.kernels.kv_gather import Gathering, gather_kv

_log = logging.getLogger(__name__)

MOST_BYTES = 1 << 30
"""Of a layer's copy, which lies beside the memory that the cache was sized for."""

COPIED_BYTES = 4
"""Of a key's and a value's number together, in the 16-bit types that FlashInfer takes."""

QUERIES_THAT_PAY = 384
"""Queries of a key, on average, from which copying it costs less than it gains."""


@dataclass(frozen=True)
class PrefillPlan:
    """What all layers of a step run with.

    Attributes:
        gathering: what a layer copies first; None: FlashInfer reads the pages.
        by_triton: the rows are too long to be copied, and cannot be read.
    """

    plan: Plan
    gathering: Gathering | None = None
    by_triton: bool = False


class FlashInferPrefill:
    """A bound prefill op. RuntimeError: FlashInfer's kernel can neither be found nor compiled."""

    def __init__(self, site: CallSite) -> None:
        self._geometry = Geometry.of(site)
        self._eight_bits = "_fp8@" in site.op
        self.plan_key = (f"{site.op}:flashinfer", self._geometry)
        if (refusal := compile_prefill(self._geometry)) is not None:
            raise RuntimeError(refusal)
        self._triton: BoundKernel = attention_prefill.bind(site)

    def plan(self, step: HostStep, scale: float) -> PrefillPlan:
        """Costs 0.1 to 0.4 ms of host time."""
        g, tokens = self._geometry, int(step.query_start[-1])
        if not tokens or not step.kv_len.any():
            return PrefillPlan(NOTHING)
        copies = self._copies(step)
        if self._eight_bits and not copies:
            return PrefillPlan(NOTHING, by_triton=True)
        if not copies:
            wrapper = flashinfer.next_wrapper(paged_wrapper, g, step.page_table)
            pages = flatten_pages(step, g.page_size)
            plan_paged(wrapper, g, step.query_start, pages, scale)
            return PrefillPlan(Plan(wrapper, tokens))
        key_start = torch.zeros_like(step.query_start)
        key_start[1:] = step.kv_len.cumsum(0)
        wrapper = flashinfer.next_wrapper(gathered_wrapper, g, step.page_table)
        plan_gathered(wrapper, g, step.query_start, key_start, scale)
        return PrefillPlan(Plan(wrapper, tokens), Gathering.of(step, g.page_size))

    def _copies(self, step: HostStep) -> bool:
        """Whether keys and values are copied."""
        g, lengths = self._geometry, step.kv_len.long()
        keys = int(lengths.sum())
        if keys * g.kv_heads * g.head_dim * COPIED_BYTES > MOST_BYTES:
            return False
        queries = step.query_start[1:] - step.query_start[:-1]
        pays = int((queries * lengths).sum()) >= QUERIES_THAT_PAY * keys
        return self._eight_bits or (pays and g.arch == "sm_90")

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        page_table: torch.Tensor,
        row_slot: torch.Tensor,
        query_start: torch.Tensor,
        kv_len: torch.Tensor,
        *rest: Any,
        plan: PrefillPlan | None = None,
    ) -> torch.Tensor:
        """``rest``: scales of keys and values if the cache has 8 bits, and the scale of scores."""
        *scales, scale = rest
        if plan is None:
            step = HostStep(query_start.cpu(), kv_len.cpu(), page_table, row_slot)
            plan = self.plan(step, scale)
        if plan.by_triton:
            where = (page_table, row_slot, query_start, kv_len)
            out: torch.Tensor = self._triton(q, k_cache, v_cache, *where, *rest)
            return out
        if plan.gathering is None:
            return plan.plan.run(q, (k_cache, v_cache))
        k_scale, v_scale = scales or (None, None)
        kv = gather_kv(k_cache, v_cache, plan.gathering, (k_scale, v_scale), q.dtype)
        return plan.plan.run(q, *kv)


@cache
def compile_prefill(geometry: Geometry) -> str | None:
    """Have FlashInfer load or compile the kernels of a geometry; why it cannot, or None.

    It does so at the first plan, so a step of one token is planned. One library holds the kernels
    for keys in pages and for keys end to end.
    """
    _log.info(
        "FlashInfer loads its prefill kernel; the first time it compiles for about 1.5 minutes, "
        "and keeps the result in %s",
        os.environ.get("FLASHINFER_WORKSPACE_BASE") or flashinfer.cache_folder(),
    )
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        page = torch.zeros(1, dtype=torch.int32)
        one = torch.tensor([0, 1], dtype=torch.int32)
        pages = Pages(one, page.to(device), page + 1)
        plan_paged(paged_wrapper(geometry, device), geometry, one, pages, 1.0)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return (
            f"FlashInfer could not make its prefill kernel: {type(error).__name__}: {lines[-1]}; "
            f"it needs ninja, a C++ compiler and nvcc on PATH, or its kernels compiled beforehand"
        )
    return None


def plan_paged(
    wrapper: Any, g: Geometry, query_start: torch.Tensor, pages: Pages, scale: float
) -> None:
    wrapper.plan(
        query_start, pages.start, pages.index, pages.last_len,
        g.heads, g.kv_heads, g.head_dim, g.page_size, causal=True, sm_scale=scale,
        window_left=g.window_left, q_data_type=g.dtype, kv_data_type=g.dtype,
    )  # fmt: skip


def plan_gathered(
    wrapper: Any, g: Geometry, query_start: torch.Tensor, key_start: torch.Tensor, scale: float
) -> None:
    wrapper.plan(
        query_start, key_start, g.heads, g.kv_heads, g.head_dim, causal=True, sm_scale=scale,
        window_left=g.window_left, q_data_type=g.dtype, kv_data_type=g.dtype,
    )  # fmt: skip


def paged_wrapper(geometry: Geometry, device: torch.device) -> Any:
    made = flashinfer.load_flashinfer().BatchPrefillWithPagedKVCacheWrapper
    return made(flashinfer.workspace(device), "HND", backend=_backend(geometry))


def gathered_wrapper(geometry: Geometry, device: torch.device) -> Any:
    made = flashinfer.load_flashinfer().BatchPrefillWithRaggedKVCacheWrapper
    return made(flashinfer.workspace(device), "NHD", backend=_backend(geometry))


def _backend(geometry: Geometry) -> str:
    return "fa3" if geometry.arch == "sm_90" else "fa2"


def bind(site: CallSite) -> FlashInferPrefill:
    return FlashInferPrefill(site)
