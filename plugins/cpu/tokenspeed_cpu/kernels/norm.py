# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""rms_norm@1 and add_rms_norm@1."""

from __future__ import annotations

import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite

from tokenspeed_cpu.kernels.base import RELEASE_BYTES, CpuKernel, trait
from tokenspeed_cpu.library import Function, check

LAYOUT = "@PPPPqqqqqd"


class RmsNorm(CpuKernel):
    """Root mean square norm."""

    op = "rms_norm@1"

    def bind(self, site: CallSite) -> BoundKernel:
        return _RmsNorm(trait(site, "hidden"))


class _RmsNorm:
    def __init__(self, hidden: int) -> None:
        self._function = Function("norm", LAYOUT)
        self._hidden = hidden
        self._release = RELEASE_BYTES // (hidden * 8)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [..., H] -> [..., H], fresh."""
        if x.dim() != 2:
            return self(x.reshape(-1, self._hidden), weight, eps).view(x.shape)
        rows = x.shape[0]
        hidden = self._hidden
        out = torch.empty(rows, hidden, dtype=torch.float32)
        call = self._function.long if rows > self._release else self._function.short
        check(
            call(
                self._function.pack(
                    x.data_ptr(),
                    0,
                    weight.data_ptr(),
                    out.data_ptr(),
                    x.stride(0),
                    0,
                    hidden,
                    rows,
                    hidden,
                    eps,
                )
            )
        )
        return out


class AddRmsNorm(CpuKernel):
    """Adds to the residual in place and normalises the sum, in one pass."""

    op = "add_rms_norm@1"

    def bind(self, site: CallSite) -> BoundKernel:
        return _AddRmsNorm(trait(site, "hidden"))


class _AddRmsNorm:
    def __init__(self, hidden: int) -> None:
        self._function = Function("norm", LAYOUT)
        self._hidden = hidden
        self._release = RELEASE_BYTES // (hidden * 16)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """x [T, H], residual [T, H] += x in place -> norm of it [T, H], fresh."""
        rows = x.shape[0]
        hidden = self._hidden
        out = torch.empty(rows, hidden, dtype=torch.float32)
        call = self._function.long if rows > self._release else self._function.short
        check(
            call(
                self._function.pack(
                    x.data_ptr(),
                    residual.data_ptr(),
                    weight.data_ptr(),
                    out.data_ptr(),
                    x.stride(0),
                    residual.stride(0),
                    hidden,
                    rows,
                    hidden,
                    eps,
                )
            )
        )
        return out
