# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Root mean square normalisation."""

from __future__ import annotations

import torch

from tokenspeed_sdk.modeling.context import BuildContext
from tokenspeed_sdk.modeling.dtypes import torch_dtype
from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.placement import Replicate
from tokenspeed_sdk.modeling.weights import WeightMap


class RMSNorm(Layer):
    """``x [..., hidden] -> normalised [..., hidden]``."""

    def __init__(self, context: BuildContext, name: str, *, hidden: int, eps: float) -> None:
        super().__init__(name, (Replicate(),), (Replicate(),))
        self.weight = _norm_weight(context, hidden)
        self.eps = eps
        self._norm = context.bind("rms_norm@1", name, hidden=hidden).call

    def run(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._norm(x, self.weight, self.eps)
        return out

    def map_weights(self, weights: WeightMap) -> None:
        weights.add(f"{self.name}.weight", self.weight)


class AddRMSNorm(Layer):
    """``x, residual [tokens, hidden] -> normalised sum, residual + x`` (in place)."""

    def __init__(self, context: BuildContext, name: str, *, hidden: int, eps: float) -> None:
        super().__init__(name, (Replicate(), Replicate()), (Replicate(), Replicate()))
        self.weight = _norm_weight(context, hidden)
        self.eps = eps
        self._norm = context.bind("add_rms_norm@1", name, hidden=hidden).call

    def run(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._norm(x, residual, self.weight, self.eps), residual

    def map_weights(self, weights: WeightMap) -> None:
        weights.add(f"{self.name}.weight", self.weight)


def _norm_weight(context: BuildContext, hidden: int) -> torch.Tensor:
    return torch.empty(hidden, dtype=torch_dtype(context.dtype), device=context.torch_device)
