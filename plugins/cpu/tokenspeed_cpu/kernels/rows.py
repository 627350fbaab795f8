# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""embedding@1, gather_rows@1 and silu_and_mul@1."""

from __future__ import annotations

import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite

from tokenspeed_cpu.kernels.base import RELEASE_BYTES, CpuKernel, trait
from tokenspeed_cpu.kernels.packing import pack_panels
from tokenspeed_cpu.library import Function, check


class Embedding(CpuKernel):
    """Reads the panels that linear reads, so that a tied head shares them."""

    op = "embedding@1"

    def bind(self, site: CallSite) -> BoundKernel:
        return _Embedding(trait(site, "vocab"), trait(site, "hidden"))

    def pack_weight(self, site: CallSite, weight: torch.Tensor) -> torch.Tensor:
        """[V, H] -> [ceil(V / 16), H, 16]."""
        return pack_panels(weight)


class _Embedding:
    def __init__(self, vocab: int, hidden: int) -> None:
        self._function = Function("embedding", "@PPPqqqq")
        self._vocab = vocab
        self._hidden = hidden
        self._release = RELEASE_BYTES // (hidden * 64)

    def __call__(self, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """ids [T] int64, weight packed or [V, H] -> [T, H]. An id without a row yields zeros."""
        tokens = ids.shape[0]
        out = torch.empty(tokens, self._hidden, dtype=torch.float32)
        stride = 0 if weight.dim() == 3 else weight.stride(0)
        call = self._function.long if tokens > self._release else self._function.short
        check(
            call(
                self._function.pack(
                    ids.data_ptr(),
                    weight.data_ptr(),
                    out.data_ptr(),
                    stride,
                    tokens,
                    self._vocab,
                    self._hidden,
                )
            )
        )
        return out


class GatherRows(CpuKernel):
    """Copies rows."""

    op = "gather_rows@1"

    def bind(self, site: CallSite) -> BoundKernel:
        return _GatherRows()


class _GatherRows:
    def __init__(self) -> None:
        self._function = Function("gather", "@PPPqqqq")

    def __call__(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """x [T, H], index [E] int64 -> [E, H]. An index without a row yields zeros."""
        rows, hidden = x.shape
        count = index.shape[0]
        out = torch.empty(count, hidden, dtype=torch.float32)
        call = self._function.long if count * hidden * 8 > RELEASE_BYTES else self._function.short
        check(
            call(
                self._function.pack(
                    x.data_ptr(),
                    index.data_ptr(),
                    out.data_ptr(),
                    x.stride(0),
                    rows,
                    count,
                    hidden,
                )
            )
        )
        return out


class SiluAndMul(CpuKernel):
    """silu of one half of a row times the other half."""

    op = "silu_and_mul@1"

    def bind(self, site: CallSite) -> BoundKernel:
        return _SiluAndMul(trait(site, "inter"))


class _SiluAndMul:
    def __init__(self, inter: int) -> None:
        self._function = Function("silu_and_mul", "@PPqqq")
        self._inter = inter
        self._release = RELEASE_BYTES // (inter * 16)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, 2I] -> [T, I]."""
        rows = x.shape[0]
        out = torch.empty(rows, self._inter, dtype=torch.float32)
        call = self._function.long if rows > self._release else self._function.short
        check(
            call(self._function.pack(x.data_ptr(), out.data_ptr(), x.stride(0), rows, self._inter))
        )
        return out
