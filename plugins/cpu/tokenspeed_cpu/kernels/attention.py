# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""attention_prefill@1 and attention_decode@1 over paged keys and values."""

from __future__ import annotations

import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite

from tokenspeed_cpu.kernels.base import RELEASE_BYTES, CpuKernel, trait
from tokenspeed_cpu.kernels.pages import LAYOUT, pages
from tokenspeed_cpu.library import Function, check

FUNCTION_LAYOUT = f"@{LAYOUT}PPPPPqqqqqd"
HEAD_DIM_STEP = 16
HEAD_DIM_MAX = 256


class _Attention(CpuKernel):
    def refusal(self, site: CallSite) -> str | None:
        head_dim = trait(site, "head_dim")
        if head_dim % HEAD_DIM_STEP or head_dim > HEAD_DIM_MAX:
            return f"needs a head size in steps of 16 up to 256, not {head_dim}"
        if site.traits["window"] is not None:
            return "has no sliding window"
        return None


class AttentionPrefill(_Attention):
    """Tiles of queries over blocks of tokens, softmax on the fly."""

    op = "attention_prefill@1"

    def bind(self, site: CallSite) -> BoundKernel:
        return _Prefill()


class _Prefill:
    def __init__(self) -> None:
        self._function = Function("attention_prefill", FUNCTION_LAYOUT)

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        page_table: torch.Tensor,
        row_slot: torch.Tensor,
        query_start: torch.Tensor,
        kv_len: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """q [T, Hq, D], caches [P, Hkv, page, D] -> [T, Hq, D]; zeros for tokens without a row."""
        tokens, heads, head_dim = q.shape
        q_token, q_head, _ = q.stride()
        out = torch.empty(tokens, heads, head_dim, dtype=torch.float32)
        check(
            self._function.long(
                self._function.pack(
                    *pages(k_cache, v_cache, page_table),
                    q.data_ptr(),
                    out.data_ptr(),
                    row_slot.data_ptr(),
                    query_start.data_ptr(),
                    kv_len.data_ptr(),
                    q_token,
                    q_head,
                    tokens,
                    row_slot.shape[0],
                    heads,
                    scale,
                )
            )
        )
        return out


class AttentionDecode(_Attention):
    """All query heads of a kv head at once, long rows in parts."""

    op = "attention_decode@1"

    def bind(self, site: CallSite) -> BoundKernel:
        return _Decode(trait(site, "kv_heads"), trait(site, "head_dim"))


class _Decode:
    def __init__(self, kv_heads: int, head_dim: int) -> None:
        self._function = Function("attention_decode", FUNCTION_LAYOUT)
        self._release = RELEASE_BYTES // (kv_heads * head_dim * 8)

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        page_table: torch.Tensor,
        row_slot: torch.Tensor,
        kv_len: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """q [R, Hq, D], caches [P, Hkv, page, D] -> [R, Hq, D]; zeros for a row without tokens."""
        rows, heads, head_dim = q.shape
        q_token, q_head, _ = q.stride()
        out = torch.empty(rows, heads, head_dim, dtype=torch.float32)
        long = sum(kv_len.tolist()) > self._release
        call = self._function.long if long else self._function.short
        check(
            call(
                self._function.pack(
                    *pages(k_cache, v_cache, page_table),
                    q.data_ptr(),
                    out.data_ptr(),
                    row_slot.data_ptr(),
                    0,
                    kv_len.data_ptr(),
                    q_token,
                    q_head,
                    rows,
                    rows,
                    heads,
                    scale,
                )
            )
        )
        return out
