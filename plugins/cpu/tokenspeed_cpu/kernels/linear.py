# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""linear@1 over packed panels."""

from __future__ import annotations

import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite

from tokenspeed_cpu.kernels.base import RELEASE_BYTES, CpuKernel, trait
from tokenspeed_cpu.kernels.packing import pack_panels
from tokenspeed_cpu.library import Function, check

FLOPS_PER_BYTE = 8
"""Multiply-adds cost as much as moving so many fewer bytes; for the estimate of a call's time."""


class Linear(CpuKernel):
    """One packed copy of the weight serves a row as well as a prompt."""

    op = "linear@1"

    def reason(self, site: CallSite) -> str:
        return f"packed once, reads a weight at the speed of memory; {super().reason(site)}"

    def bind(self, site: CallSite) -> BoundKernel:
        return _Linear(trait(site, "n"), trait(site, "k"))

    def pack_weight(self, site: CallSite, weight: torch.Tensor) -> torch.Tensor:
        """[N, K] -> [ceil(N / 16), K, 16]."""
        return pack_panels(weight)


class _Linear:
    def __init__(self, n: int, k: int) -> None:
        self._function = Function("linear", "@PPPPqqqqq")
        self._n = n
        self._k = k
        weight_bytes = n * k * 4
        self._release = (
            0
            if weight_bytes > RELEASE_BYTES
            else RELEASE_BYTES * FLOPS_PER_BYTE // (2 * max(1, n * k))
        )

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [T, K], weight packed, bias [N] -> [T, N]. ValueError: x is of another width."""
        rows, width = x.shape
        if width != self._k:  # whoever made x may be a stranger, and the kernel reads K values
            raise ValueError(f"linear@1: x has {width} columns, the weight takes {self._k}")
        n = self._n
        out = torch.empty(rows, n, dtype=torch.float32)
        call = self._function.long if rows > self._release else self._function.short
        check(
            call(
                self._function.pack(
                    x.data_ptr(),
                    weight.data_ptr(),
                    0 if bias is None else bias.data_ptr(),
                    out.data_ptr(),
                    x.stride(0),
                    n,
                    rows,
                    n,
                    self._k,
                )
            )
        )
        return out
