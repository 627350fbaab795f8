# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""linear@1 by torch: what the own kernel is measured against, and a way out for people."""

from __future__ import annotations

from typing import Any

import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite

from tokenspeed_cpu.kernels.base import TorchKernel


class OnednnLinear(TorchKernel):
    """oneDNN with the weight reordered once."""

    op = "linear@1"
    name = "onednn"
    score = 50
    reason = "oneDNN on a weight reordered once"

    def refusal(self) -> str | None:
        available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return None if available else "this torch has no oneDNN"

    def bind(self, site: CallSite) -> BoundKernel:
        return _onednn

    def pack_weight(self, site: CallSite, weight: torch.Tensor) -> Any:
        """[N, K] -> an opaque tensor of oneDNN."""
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)


def _onednn(x: torch.Tensor, weight: Any, bias: torch.Tensor | None = None) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


class TorchLinear(TorchKernel):
    """torch.nn.functional.linear on the plain weight."""

    op = "linear@1"
    name = "torch"
    score = 40
    reason = "torch on the plain weight"

    def bind(self, site: CallSite) -> BoundKernel:
        return torch.nn.functional.linear
