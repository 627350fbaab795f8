# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What weights of codes are made of: the one place that knows the formats of linears."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from tokenspeed_sdk.modeling.quantization import FP8, INT8
from tokenspeed_sdk.ops import fp8, int8


@dataclass(frozen=True)
class WeightFormat:
    """Weights [N, K] of codes with scales beside them.

    Attributes:
        name: as options and configurations name it.
        linear_op: the op that multiplies with it; takes the scales behind the codes.
        dtype: of the codes; scales are float32.
        scale_shape: from N and K.
        quantize: a floating weight -> codes and scales.
        codes_head: whether the head is of codes, too; made of the floating one after loading.
        stored: dtype of codes in checkpoints that are quantised so, as safetensors names it; None:
            the format is made while floating weights are loaded, and only so.
    """

    name: str
    linear_op: str
    dtype: torch.dtype
    scale_shape: Callable[[int, int], tuple[int, int]]
    quantize: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    codes_head: bool = False
    stored: str | None = None

    def empty(self, n: int, k: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales of a weight, not filled."""
        scale = torch.empty(self.scale_shape(n, k), dtype=torch.float32, device=device)
        return torch.empty(n, k, dtype=self.dtype, device=device), scale


def _blocks(n: int, k: int) -> tuple[int, int]:
    return -(-n // fp8.BLOCK), -(-k // fp8.BLOCK)


def _groups(n: int, k: int) -> tuple[int, int]:
    return int8.groups_of(k), n


WEIGHT_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {
        FP8: WeightFormat(
            FP8, "linear_fp8@1", fp8.DTYPE, _blocks, fp8.quantize_weight, stored="F8_E4M3"
        ),
        INT8: WeightFormat(
            INT8, "linear_int8@1", int8.DTYPE, _groups, int8.quantize_weight, codes_head=True
        ),
    }
)
"""Name of a quantization to what its weights are."""
