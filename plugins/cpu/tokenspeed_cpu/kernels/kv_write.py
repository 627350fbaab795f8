# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""kv_write@1."""

from __future__ import annotations

import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite

from tokenspeed_cpu.kernels.base import RELEASE_BYTES, CpuKernel
from tokenspeed_cpu.kernels.pages import LAYOUT, pages
from tokenspeed_cpu.library import Function, check


class KvWrite(CpuKernel):
    """Copies keys and values of new tokens to their pages."""

    op = "kv_write@1"

    def bind(self, site: CallSite) -> BoundKernel:
        return _KvWrite()


class _KvWrite:
    def __init__(self) -> None:
        self._function = Function("kv_write", f"@{LAYOUT}PPPPqqqqq")

    def __call__(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        page_table: torch.Tensor,
        token_slot: torch.Tensor,
        positions: torch.Tensor,
    ) -> None:
        """k, v [T, Hkv, D] into the caches [P, Hkv, page, D]. What has no page goes to page 0."""
        tokens, kv_heads, head_dim = k.shape
        k_token, k_head, _ = k.stride()
        v_token, v_head, _ = v.stride()
        work = tokens * kv_heads * head_dim * 16
        call = self._function.long if work > RELEASE_BYTES else self._function.short
        check(
            call(
                self._function.pack(
                    *pages(k_cache, v_cache, page_table),
                    k.data_ptr(),
                    v.data_ptr(),
                    token_slot.data_ptr(),
                    positions.data_ptr(),
                    k_token,
                    k_head,
                    v_token,
                    v_head,
                    tokens,
                )
            )
        )
