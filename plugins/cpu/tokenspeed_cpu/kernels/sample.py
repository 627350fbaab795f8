# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""sample@1."""

from __future__ import annotations

import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite

from tokenspeed_cpu.kernels.base import CpuKernel
from tokenspeed_cpu.library import Function, check

RELEASE_GREEDY = 250_000
"""Logits whose maximum takes 100 us to find."""

DRAW_COST = 16
"""How much longer a draw takes than an arg-max."""


class Sample(CpuKernel):
    """Arg-max, or a draw over what top-k, top-p and min-p leave, without a full sort."""

    op = "sample@1"

    def bind(self, site: CallSite) -> BoundKernel:
        return _Sample()


class _Sample:
    def __init__(self) -> None:
        self._function = Function("sample", "@PPPPPPPPqqq")

    def __call__(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        seed: torch.Tensor,
        position: torch.Tensor,
    ) -> torch.Tensor:
        """logits [E, V], each parameter [E] -> [E] int64; -1 for a row without a finite maximum."""
        rows, vocab = logits.shape
        out = torch.empty(rows, dtype=torch.int64)
        work = rows * vocab * (DRAW_COST if any(temperature.tolist()) else 1)
        call = self._function.long if work > RELEASE_GREEDY else self._function.short
        check(
            call(
                self._function.pack(
                    logits.data_ptr(),
                    temperature.data_ptr(),
                    top_k.data_ptr(),
                    top_p.data_ptr(),
                    min_p.data_ptr(),
                    seed.data_ptr(),
                    position.data_ptr(),
                    out.data_ptr(),
                    logits.stride(0),
                    rows,
                    vocab,
                )
            )
        )
        return out
