# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""rope@1."""

from __future__ import annotations

import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite

from tokenspeed_cpu.kernels.base import RELEASE_BYTES, CpuKernel, trait
from tokenspeed_cpu.library import Function, check


class Rope(CpuKernel):
    """Rotates q and k in place, in one call."""

    op = "rope@1"

    def refusal(self, site: CallSite) -> str | None:
        rotary = trait(site, "rotary")
        return f"needs an even rotary size, not {rotary}" if rotary % 2 else None

    def bind(self, site: CallSite) -> BoundKernel:
        return _Rope(trait(site, "rotary"), bool(site.traits["interleaved"]))


class _Rope:
    def __init__(self, rotary: int, interleaved: bool) -> None:
        self._function = Function("rope", "@PPPPqqqqqqqqqqq")
        self._rotary = rotary
        self._interleaved = int(interleaved)

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
    ) -> None:
        """q [T, Hq, D] and k [T, Hkv, D] in place; positions [T] int32; cos_sin [P, rotary]."""
        tokens, heads, _ = q.shape
        kv_heads = k.shape[1]
        q_token, q_head, _ = q.stride()
        k_token, k_head, _ = k.stride()
        work = tokens * (heads + kv_heads) * self._rotary * 8
        call = self._function.long if work > RELEASE_BYTES else self._function.short
        check(
            call(
                self._function.pack(
                    q.data_ptr(),
                    k.data_ptr(),
                    positions.data_ptr(),
                    cos_sin.data_ptr(),
                    q_token,
                    q_head,
                    k_token,
                    k_head,
                    cos_sin.stride(0),
                    tokens,
                    heads,
                    kv_heads,
                    cos_sin.shape[0],
                    self._rotary,
                    self._interleaved,
                )
            )
        )
